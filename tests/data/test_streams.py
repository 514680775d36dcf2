"""Pictures of many sizes: which pixels come out, and how threads share the work."""

import io
import itertools
import threading

import numpy as np
import pytest
from PIL import Image

from metamask_jax.data import batches, open_source, pictures
from metamask_jax.data.streams import Streaming, map_steps
from metamask_jax.errors import DataError
from metamask_jax.kernels.process import cores

SIZES = [(90, 60), (60, 90), (41, 47), (120, 30), (33, 150), (64, 64)]  # width and height


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    root = tmp_path_factory.mktemp("photographs")
    draw = np.random.default_rng(0)
    for i, size in enumerate(SIZES):
        coarse = Image.fromarray(draw.integers(0, 256, (9, 9, 3), np.uint8))
        coarse.resize(size, Image.Resampling.BICUBIC).save(root / f"{i}.jpg", quality=90)
    return root


def open_photographs(photographs, data_dir, **options):
    return open_source(
        "image_folder", split="pretrain", data_dir=data_dir, path=str(photographs), image_size=24, **options
    )


def test_crops_are_what_pillow_makes_of_the_files(photographs, data_dir):
    source = open_photographs(photographs, data_dir, views=2)
    order = np.array([3, 0, 5, 1, 4, 2])
    positions = np.arange(10, 16)
    images, _ = source.gather_crops(order, seed=7, step=11, positions=positions)
    for index, position, views in zip(order, positions, images, strict=True):
        encoded = source.records.value(source.records.read_one(index), "image")
        picture = Image.open(io.BytesIO(encoded))
        for uniform, view in zip(pictures.uniform_draws(7, 11, int(position), 2), views, strict=True):
            box = pictures.random_box(picture.size, uniform, area=(0.08, 1.0), aspect=(3 / 4, 4 / 3))
            expected = picture.resize((24, 24), Image.Resampling.BICUBIC, box=box)
            np.testing.assert_array_equal(view, np.asarray(expected))


def test_centred_squares_are_what_pillow_makes_of_the_files(photographs, data_dir):
    source = open_photographs(photographs, data_dir, centre=0.8)
    for index, image in enumerate(source.gather(np.arange(6))[0]):
        picture = Image.open(io.BytesIO(source.records.value(source.records.read_one(index), "image")))
        box = pictures.centre_box(picture.size, 0.8)
        np.testing.assert_array_equal(image, np.asarray(picture.resize((24, 24), Image.Resampling.BICUBIC, box=box)))


def test_there_are_as_many_threads_as_cores_unless_told_otherwise(photographs, data_dir):
    assert open_photographs(photographs, data_dir).streaming.threads == cores()
    assert open_photographs(photographs, data_dir, threads=3).streaming.threads == 3


def test_all_threads_work_on_one_batch():
    meeting = threading.Barrier(4, timeout=20)  # breaks, and fails the test, unless four parts are under way at once

    def make(step, run):
        return list(run(lambda part: meeting.wait() and step, [range(i, i + 1) for i in range(4)]))

    assert len(list(map_steps(make, start=0, stop=3, streaming=Streaming(image_size=8, threads=4)))) == 3


def test_no_more_than_two_batches_are_in_the_making():
    under_way, most, lock = [], [], threading.Lock()

    def make(step, run):
        with lock:
            under_way.append(step)
        list(run(lambda part: part, [range(1)] * 3))
        with lock:
            most.append(len(under_way))
            under_way.remove(step)
        return step

    made = map_steps(make, start=5, stop=40, streaming=Streaming(image_size=8, threads=16))
    assert list(made) == list(range(5, 40))
    assert max(most) <= 2


def threads_of_streams():
    return [thread for thread in threading.enumerate() if thread.name.startswith(("decode", "make"))]


def test_closing_a_stream_ends_its_threads(photographs, data_dir):
    stream = batches(open_photographs(photographs, data_dir, views=2, threads=2), seed=0, batch_size=4)
    assert [len(batch.images) for batch in itertools.islice(stream, 3)] == [4, 4, 4]
    assert threads_of_streams()
    stream.close()
    assert not threads_of_streams()


def test_what_fails_in_a_thread_reaches_the_consumer_after_the_batches_before_it():
    def make(step, run):
        def work(part):
            if (step, part) == (2, range(1, 2)):
                raise DataError("picture 3 is damaged")

        list(run(work, [range(i, i + 1) for i in range(3)]))
        return step

    made = map_steps(make, start=0, stop=None, streaming=Streaming(image_size=8, threads=2))
    assert [next(made), next(made)] == [0, 1]
    with pytest.raises(DataError, match="picture 3 is damaged"):
        next(made)
    assert not threads_of_streams()
