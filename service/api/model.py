"""Cost models: list them with their accuracy, and request training."""

from __future__ import annotations

import msgspec
from fastapi import APIRouter, Response

from service.access import audit
from service.access.auth import Who
from service.api.wire import TARGET, Body, describe, reply
from service.context import Ctx
from service.errors import InvalidError
from service.predict import training
from strategy.record import Name
from strategy.target import Target

router = APIRouter(prefix="/v1", tags=["models"])


class Models(msgspec.Struct, frozen=True, kw_only=True):
    """Cost models, the newest first."""

    models: tuple[training.Model, ...]


class TrainingRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request for a cost model of an operator on a target."""

    op: Name
    target: Target


@router.get(
    "/models",
    **describe(
        "List the cost models", gives=Models, errors=(422,),
        note="A cost model predicts the times of an operator on a target. `accuracy` is the share of pairs of "
        "configurations, of held-out workloads, that it puts in the measured order; the newest model of "
        "an operator and target answers selections as `predicted` if that is at least `bar`. `target` "
        "is a target's key.",
    ),
)
def list_models(context: Ctx, op: str | None = None, target: str | None = None) -> Response:
    with context.store.read() as connection:
        found = training.find(connection, op=op, target_key=target)
    return reply(Models(models=tuple(found)))


@router.get(
    "/models/{model_id}",
    **describe("A cost model's training data and accuracy", gives=training.Model, errors=(404,)),
)
def show_model(context: Ctx, model_id: int) -> Response:
    with context.store.read() as connection:
        return reply(training.show(connection, model_id))


@router.post(
    "/models",
    **describe(
        "Train a cost model", takes=TrainingRequest, gives=training.Known, status=202, errors=(404,),
        example={"op": "dense", "target": TARGET},
        note="From all records of the operator on the target, in a separate process, once no run is "
        "live. It is listed when it is trained; the answer has the amount of training data.",
    ),
)
def train(context: Ctx, who: Who, body: Body[TrainingRequest]) -> Response:
    if context.trainer is None:
        raise InvalidError("this service does not train (PLEVEL_TUNE is off): use one that tunes")
    with context.store.write() as connection:
        known = training.known(connection, body.op, body.target.key)
        audit.note(connection, who, "model.train", op=body.op, target=body.target.key)
    context.trainer.ask(body.op, body.target.key)
    return reply(known, 202)
