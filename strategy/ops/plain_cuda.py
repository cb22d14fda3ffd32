"""What runs on NVIDIA's GPUs as it is written, without anything to tune."""

from __future__ import annotations

from strategy.cuda.schedule import schedule_plain_cuda
from strategy.ops.conv2d.gradient import schedule_conv2d_backward
from strategy.ops.max_pool2d import schedule_pool

schedule_pool.register(["cuda", "gpu"], schedule_plain_cuda)
schedule_conv2d_backward.register(["cuda", "gpu"], schedule_plain_cuda)
