"""Normal form of a network: equal calculations become equal workloads, however a model spells them.

Constants are computed; factors and summands of channels move into the weights and the bias before them (batch
norms); reshapes move behind elementwise operators, so that these are the epilogue of a product; transposes meet. A
product that is read in parts becomes one for each, and attention reads heads where the products before it wrote them,
also where a model puts the sequence before the batch.
"""

from __future__ import annotations

from dataclasses import replace

from strategy.network import folding, integer, movement, recognition, rotary
from strategy.network.graph import Network
from strategy.network.rewriter import Rewriter, Rule

_RULES: tuple[Rule, ...] = (
    folding.compute_constant,
    movement.join_reshapes,
    folding.divide_by_number,
    recognition.recognize_activation,
    recognition.recognize_softmax,
    recognition.recognize_rms_norm,
    recognition.narrow_rows,
    rotary.recognize_rotary_embedding,
    recognition.drop_mask,
    movement.sink_unary,
    movement.sink_binary,
    integer.drop_offset,
    integer.dequantize_sums,
    folding.add_bias,
    folding.scale_weight,
    movement.join_transposes,
    movement.leave_rows,
    movement.turn_operand,
    movement.slice_before_transpose,
    movement.slice_before_reshape,
    movement.divide_product,
    movement.attend_by_tokens,
)


def normalize(network: Network) -> Network:
    """The same network in normal form."""
    for _ in range(2):  # what becomes one operator has one reader more than it will have
        made = Rewriter(network, _RULES)
        outputs = {name: made.of(node) for name, node in network.outputs.items()}
        network = replace(network, outputs=outputs, names=made.names)
    return network
