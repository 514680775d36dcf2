import io
import logging
import shutil

import numpy as np
import pytest
from PIL import Image

from metamask_jax.data import StreamSource, batches, open_source
from metamask_jax.data.builders.image_folder import displayed
from metamask_jax.errors import DataError


def open_folder(path, data_dir, *, split="pretrain", image_size=8, **options):
    return open_source("image_folder", split=split, data_dir=data_dir, path=str(path), image_size=image_size, **options)


def write(path, value=100, size=(12, 10)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((*size, 3), value, np.uint8)).save(path)


def test_the_folder_is_the_class(picture_folder, data_dir):
    source = open_folder(picture_folder, data_dir)
    assert isinstance(source, StreamSource)
    assert (len(source), source.num_classes, source.class_names) == (12, 3, ("ant", "bee", "cat"))
    images, labels = source.gather(np.arange(12))
    assert images.shape == (12, 8, 8, 3)
    shades = images[:, 0, 0, 0] // 10  # picture i was painted 10 * i and filed under class i % 3
    assert sorted(shades) == list(range(12))
    np.testing.assert_array_equal(labels, shades % 3)
    np.testing.assert_array_equal(source.labels, labels)


def test_a_flat_folder_is_unlabelled(tmp_path, data_dir):
    for i in range(3):
        write(tmp_path / f"{i}.jpg")
    source = open_folder(tmp_path, data_dir)
    assert (source.num_classes, source.class_names) == (0, ())
    assert source.gather(np.arange(3))[1].tolist() == [-1, -1, -1]
    assert source.labels.tolist() == [-1, -1, -1]


def test_train_and_test_folders_are_splits_that_share_their_classes(tmp_path, data_dir):
    write(tmp_path / "train" / "a" / "1.png")
    write(tmp_path / "train" / "b" / "2.png")
    write(tmp_path / "test" / "b" / "3.png")
    assert len(open_folder(tmp_path, data_dir)) == 2
    test = open_folder(tmp_path, data_dir, split="test")
    assert test.class_names == ("a", "b")
    assert test.gather(np.arange(1))[1].tolist() == [1]


def test_a_changed_folder_is_read_anew(tmp_path, data_dir):
    write(tmp_path / "1.png")
    assert len(open_folder(tmp_path, data_dir)) == 1
    write(tmp_path / "2.png")
    assert len(open_folder(tmp_path, data_dir)) == 2


@pytest.fixture
def damaged_folder(picture_folder, tmp_path):
    root = tmp_path / "damaged"
    shutil.copytree(picture_folder, root)
    (root / "ant" / "text.jpg").write_text("not a picture")
    whole = (root / "bee" / "01.png").read_bytes()
    (root / "bee" / "01.png").write_bytes(whole[: len(whole) // 2])
    return root


def test_unreadable_files_are_skipped_and_reported_with_their_count(damaged_folder, data_dir, caplog):
    with caplog.at_level(logging.WARNING):
        assert len(open_folder(damaged_folder, data_dir)) == 11
    assert "skipped 2 unreadable of 13 files" in caplog.text
    assert "text.jpg" in caplog.text


def test_unreadable_files_are_refused_when_asked(damaged_folder, data_dir):
    with pytest.raises(
        DataError, match=r"text\.jpg is not a readable picture \(its format is not known\); on_error='skip' would"
    ):
        open_folder(damaged_folder, data_dir, on_error="refuse")


def test_a_folder_without_pictures_is_refused(tmp_path, data_dir):
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(DataError, match="holds no pictures"):
        open_folder(tmp_path, data_dir)


def test_a_folder_of_nothing_readable_is_refused(tmp_path, data_dir):
    (tmp_path / "1.png").write_text("hello")
    with pytest.raises(DataError, match="none of the 1 pictures"):
        open_folder(tmp_path, data_dir)


def test_a_folder_that_does_not_exist_is_refused(tmp_path, data_dir):
    with pytest.raises(DataError, match=r"path='.*nowhere' is not a folder"):
        open_folder(tmp_path / "nowhere", data_dir)


def test_a_folder_that_is_not_named_is_refused(data_dir):
    with pytest.raises(DataError, match="path='' is not a folder"):
        open_source("image_folder", split="pretrain", data_dir=data_dir, image_size=8)


def test_a_path_may_begin_at_home(picture_folder, data_dir, monkeypatch):
    monkeypatch.setenv("HOME", str(picture_folder.parent))
    assert len(open_folder(f"~/{picture_folder.name}", data_dir)) == 12


def test_an_unknown_way_to_treat_errors_is_refused(picture_folder, data_dir):
    with pytest.raises(DataError, match="on_error='ignore'; expected 'skip' or 'refuse'"):
        open_folder(picture_folder, data_dir, on_error="ignore")


def test_many_sizes_need_one_to_come_to(picture_folder, data_dir):
    with pytest.raises(DataError, match="image_size is not set; 'image_folder' has pictures of many sizes"):
        open_source("image_folder", split="pretrain", data_dir=data_dir, path=str(picture_folder))


def encoded(picture, kind="png", **options):
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


def shown(data):
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


def test_ordinary_files_are_kept_byte_for_byte():
    colour = Image.fromarray(np.random.default_rng(0).integers(0, 256, (5, 7, 3), np.uint8))
    for file in (encoded(colour), encoded(colour, "jpeg"), encoded(colour.convert("L")), encoded(colour.convert("P"))):
        assert displayed(file) == file


def test_transparent_pixels_are_shown_on_white():
    pixels = np.zeros((2, 2, 4), np.uint8)
    pixels[0, 0] = (200, 0, 0, 255)
    assert shown(displayed(encoded(Image.fromarray(pixels)))).tolist() == [
        [[200, 0, 0], [255] * 3],
        [[255] * 3, [255] * 3],
    ]


def test_deep_greys_keep_their_range():
    greys = np.array([[0, 30000, 60000]], np.uint16)
    assert shown(displayed(encoded(Image.fromarray(greys))))[0, :, 0].tolist() == [0, 127, 255]


def test_a_photograph_is_turned_as_its_camera_noted():
    picture = Image.fromarray(np.array([[[250, 0, 0], [0, 0, 250]]], np.uint8))
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by a quarter, clockwise
    turned = shown(displayed(encoded(picture, exif=exif)))
    assert turned.tolist() == [[[250, 0, 0]], [[0, 0, 250]]]


@pytest.mark.parametrize(("kind", "mode"), [("png", "RGB"), ("jpeg", "RGB"), ("jpeg", "L"), ("png", "RGBA")])
def test_large_pictures_are_reduced_when_asked_and_look_the_same(kind, mode):
    ramp = np.linspace(0, 255, 400)[None, :, None] * np.ones((300, 1, 3))
    picture = Image.fromarray(ramp.astype(np.uint8)).convert(mode)
    small = shown(displayed(encoded(picture, kind), shorter_side=30))
    assert small.shape == (30, 40, 3)
    expected = shown(encoded(picture.convert("RGB").resize((40, 30), Image.Resampling.BICUBIC)))
    assert np.abs(small.astype(int) - expected).max() <= 3
    assert displayed(encoded(picture.convert("RGB"), kind), shorter_side=300) == encoded(picture.convert("RGB"), kind)


def test_a_turned_photograph_is_reduced_by_its_own_shorter_side():
    exif = Image.Exif()
    exif[0x0112] = 6
    file = encoded(Image.fromarray(np.zeros((80, 160, 3), np.uint8)), "jpeg", exif=exif)
    assert shown(displayed(file, shorter_side=20)).shape == (40, 20, 3)


def test_reduced_pictures_are_another_copy_of_the_folder(picture_folder, data_dir):
    assert len(open_folder(picture_folder, data_dir, shorter_side=16)) == 12
    with pytest.raises(DataError, match="shorter_side=-1; expected 0 to 8192"):
        open_folder(picture_folder, data_dir, shorter_side=-1)


def crops(source, **overrides):
    settings = {"seed": 3, "start_step": 0, "batch_size": 4, "process_index": 0, "process_count": 1, "num_steps": 5}
    return list(batches(source, **(settings | overrides)))


@pytest.fixture(scope="module")
def textured_folder(tmp_path_factory):
    """Nine pictures that hold their own coordinates: red counts columns, green rows, blue is the picture."""
    root = tmp_path_factory.mktemp("textured")
    for i in range(9):
        pixels = np.zeros((40 + 8 * i, 120, 3), np.uint8)
        pixels[..., 0], pixels[..., 1], pixels[..., 2] = np.arange(120), np.arange(len(pixels))[:, None], 20 * i
        Image.fromarray(pixels).save(root / f"{i}.png")
    return root


@pytest.mark.parametrize("workers", [{"threads": 1}, {"threads": 4}])
def test_streamed_crops_are_a_function_of_the_step_alone(textured_folder, data_dir, workers):
    reference = crops(open_folder(textured_folder, data_dir, views=2, threads=2))
    source = open_folder(textured_folder, data_dir, views=2, **workers)
    assert reference[0].images.shape == (4, 2, 8, 8, 3)
    halves = [crops(source, process_index=i, process_count=2, start_step=2, num_steps=3) for i in (0, 1)]
    for expected, *parts in zip(reference[2:], *halves, strict=True):
        for field in ("images", "labels", "positions", "indices"):
            np.testing.assert_array_equal(
                np.concatenate([getattr(part, field) for part in parts]), getattr(expected, field)
            )


@pytest.mark.slow
def test_processes_stream_the_same_batches_as_threads(textured_folder, data_dir):
    reference = crops(open_folder(textured_folder, data_dir, views=1))
    for expected, batch in zip(
        reference, crops(open_folder(textured_folder, data_dir, views=1, processes=2)), strict=True
    ):
        np.testing.assert_array_equal(batch.images, expected.images)


def test_crops_differ_between_views_steps_and_seeds(textured_folder, data_dir):
    source = open_folder(textured_folder, data_dir, views=2)
    indices, positions = np.array([0, 0]), np.array([0, 1])
    drawn = [source.gather_crops(indices, seed=s, step=t, positions=positions)[0] for s, t in ((0, 0), (0, 1), (1, 0))]
    assert len({crop.tobytes() for images in drawn for crop in images.reshape(-1, 8, 8, 3)}) == 12


def test_a_damaged_record_reaches_the_consumer_of_a_stream(picture_folder, data_dir, monkeypatch):
    def refuse(encoded, what):
        raise DataError(f"{what} is damaged")

    monkeypatch.setattr("metamask_jax.data.pictures.decode", refuse)
    with pytest.raises(DataError, match="of 'train' of 'image_folder' is damaged"):
        crops(open_folder(picture_folder, data_dir))


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"views": -1}, "views=-1"),
        ({"centre": 0}, "centre=0; expected more than 0"),
        ({"area": (0.5, 0.2)}, "area="),
        ({"aspect": (0, 1)}, "aspect="),
        ({"threads": 0}, "threads=0"),
    ],
)
def test_an_impossible_way_to_crop_is_refused(picture_folder, data_dir, option, message):
    with pytest.raises(DataError, match=message):
        open_folder(picture_folder, data_dir, **option)
