import itertools
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from metamask_jax.data import ArraySource, batches, prefetch
from metamask_jax.errors import DataError


def make_source(size=40):
    return ArraySource(
        name="numbers",
        images=np.arange(size, dtype=np.uint8)[:, None, None, None].repeat(3, axis=3),
        labels=np.arange(size, dtype=np.int32) % 7,
        num_classes=7,
        class_names=tuple("abcdefg"),
        factors={},
    )


def run(source, *, start_step=0, num_steps=9, process_index=0, process_count=1, batch_size=8, seed=5):
    return list(
        batches(
            source,
            seed=seed,
            start_step=start_step,
            batch_size=batch_size,
            process_index=process_index,
            process_count=process_count,
            num_steps=num_steps,
        )
    )


@pytest.mark.parametrize("process_count", [1, 2, 4])
def test_slices_of_any_number_of_processes_make_up_the_one_global_batch(process_count):
    source = make_source()
    whole = run(source)
    parts = [run(source, process_index=i, process_count=process_count) for i in range(process_count)]
    for step, batch in enumerate(whole):
        slices = [part[step] for part in parts]
        for field in ("images", "labels", "positions", "indices"):
            np.testing.assert_array_equal(np.concatenate([getattr(s, field) for s in slices]), getattr(batch, field))


@pytest.mark.parametrize("start_step", [0, 1, 4, 5, 13])
def test_starting_at_a_step_continues_the_run_exactly(start_step):
    source = make_source()
    whole, rest = run(source, num_steps=20), run(source, start_step=start_step, num_steps=20 - start_step)
    for expected, batch in zip(whole[start_step:], rest, strict=True):
        np.testing.assert_array_equal(batch.indices, expected.indices)


def test_a_batch_holds_the_pictures_and_labels_of_its_indices():
    batch = run(make_source(), num_steps=1)[0]
    np.testing.assert_array_equal(batch.images[:, 0, 0, 0], batch.indices)
    np.testing.assert_array_equal(batch.labels, batch.indices % 7)
    np.testing.assert_array_equal(batch.positions, np.arange(8))
    assert (batch.images.dtype, batch.labels.dtype, batch.positions.dtype) == (np.uint8, np.int32, np.int32)


def test_without_a_number_of_steps_batches_go_on_for_ever():
    assert len(list(itertools.islice(batches(make_source(), seed=0, start_step=0, batch_size=8, process_index=0,
                                             process_count=1), 23))) == 23  # fmt: skip


def test_a_batch_larger_than_the_set_is_refused_before_the_first_batch():
    with pytest.raises(DataError, match="batch_size=64; expected 1 to 40"):
        batches(make_source(), seed=0, start_step=0, batch_size=64, process_index=0, process_count=1)


def test_a_batch_that_processes_cannot_share_evenly_is_refused():
    with pytest.raises(DataError, match="batch_size=10; expected a multiple of 4"):
        batches(make_source(), seed=0, start_step=0, batch_size=10, process_index=0, process_count=4)


def test_a_process_index_out_of_range_is_refused():
    with pytest.raises(ValueError, match="process_index=2; expected 0 to 1"):
        batches(make_source(), seed=0, start_step=0, batch_size=8, process_index=2, process_count=2)


def prefetch_threads():
    return [thread for thread in threading.enumerate() if thread.name == "prefetch"]


def test_prefetch_yields_every_item_in_order_and_transferred():
    assert list(prefetch(iter(range(50)), depth=3, transfer=lambda i: i * i)) == [i * i for i in range(50)]
    assert not prefetch_threads()


def test_prefetch_transfers_in_its_own_thread_and_runs_ahead_no_further_than_depth():
    made, threads = [], set()

    def transfer(i):
        made.append(i)
        threads.add(threading.current_thread().name)
        return i

    items = prefetch(itertools.count(), depth=2, transfer=transfer)
    assert next(items) == 0
    deadline = time.monotonic() + 5
    while len(made) < 3 and time.monotonic() < deadline:
        time.sleep(0.001)
    time.sleep(0.05)  # time enough to overrun, were nothing to stop it
    assert made == [0, 1, 2]
    assert threads == {"prefetch"}
    items.close()


def test_an_exception_in_the_thread_reaches_the_consumer_after_the_items_before_it():
    def failing():
        yield 1
        yield 2
        raise DataError("picture 3 is damaged")

    items = prefetch(failing(), depth=8, transfer=lambda i: i)
    assert [next(items), next(items)] == [1, 2]
    with pytest.raises(DataError, match="picture 3 is damaged"):
        next(items)
    assert not prefetch_threads()


def test_an_exception_in_the_transfer_reaches_the_consumer():
    items = prefetch(iter([4, 0]), depth=1, transfer=lambda i: 8 // i)
    assert next(items) == 2
    with pytest.raises(ZeroDivisionError):
        next(items)


@pytest.mark.parametrize("end", ["close", "drop"])
def test_closing_or_dropping_stops_the_thread_and_closes_the_iterator(end):
    closed = threading.Event()

    def endless():
        try:
            yield from itertools.count()
        finally:
            closed.set()

    items = prefetch(endless(), depth=2, transfer=lambda i: i)
    assert next(items) == 0
    assert len(prefetch_threads()) == 1
    if end == "close":
        items.close()
    else:
        del items
    assert closed.wait(5)
    assert not prefetch_threads()


def test_a_depth_below_one_is_refused():
    with pytest.raises(ValueError, match="depth=0; expected at least 1"):
        prefetch(iter(()), depth=0, transfer=lambda i: i)


def test_the_interpreter_ends_cleanly_while_a_prefetch_is_under_way():
    program = """
import itertools, jax, numpy as np
from metamask_jax.data import prefetch
items = prefetch(itertools.repeat(np.ones((64, 1024))), depth=2, transfer=jax.device_put)
print(next(items).shape)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "(64, 1024)\n", "")
