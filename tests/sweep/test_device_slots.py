"""Which GPUs the cells of an executor get."""

from __future__ import annotations

from blockyard.sweep.executor._slots import DeviceSlots
from tests.sweep.executor_tasks import config


def test_gpus_go_to_the_least_loaded_with_a_limit_of_cells_each():
    slots = DeviceSlots(6, ["0", "1"], per_gpu=2)
    acquired = [slots.acquire(config()) for _ in range(4)]
    assert [gpus for _, gpus in acquired] == [["0"], ["1"], ["0"], ["1"]]
    assert slots.acquire(config()) is None
    slots.release(acquired[1])
    assert slots.acquire(config(accelerator="cpu")) == (1, [])  # a slot, no GPU


def test_a_cell_of_several_devices_takes_as_many():
    slots = DeviceSlots(2, ["0", "1"])
    assert slots.acquire(config(2)) == (2, ["0", "1"])
    assert slots.acquire(config(accelerator="cpu")) is None
    assert DeviceSlots(2, []).acquire(config(5)) == (2, [])  # more processes than cores: it runs alone
    assert "64" in DeviceSlots(2, ["0"]).problem(config(64))
    assert "num_nodes=2" in DeviceSlots(2, []).problem(config(nodes=2))
    assert "no GPU" in DeviceSlots(2, []).problem(config(accelerator="gpu"))
