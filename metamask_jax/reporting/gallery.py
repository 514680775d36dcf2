"""The parts of a report that are made of pictures: views, neighbours, and what dimensions respond to."""

import base64
import io
from collections.abc import Iterator, Mapping, Sequence
from html import escape

import numpy as np

_LARGEST_PNG = 48  # pixels: larger pictures are smaller as JPEG


def samples_panel(arrays: Mapping[str, np.ndarray]) -> str:
    """Training pictures, each beside its views."""
    if "sample_views" not in arrays:
        return ""
    images, views = arrays["sample_images"], arrays["sample_views"]
    rows = "".join(
        f'<div class="strip">{_picture(image, "training picture")}<span class="arrow">→</span>'
        + "".join(_picture(view[i], "view") for view in views)
        + "</div>"
        for i, image in enumerate(images)
    )
    return _panel(
        "Pictures and their views",
        f'<div class="strips samples">{rows}</div>',
        f"Training pictures, and the {len(views)} views of each that the first step sees: their features are pulled "
        "together. Colours are those before normalisation.",
    )


def neighbors_panel(arrays: Mapping[str, np.ndarray]) -> str:
    """Test pictures beside the pictures whose features are nearest."""
    if "neighbor_images" not in arrays:
        return ""
    names = class_names(arrays)
    rows, right, judged = [], 0, 0
    for i, image in enumerate(arrays["query_images"]):
        own = int(arrays["query_labels"][i])
        pictures = []
        for j, neighbor in enumerate(arrays["neighbor_images"][i]):
            label, similarity = int(arrays["neighbor_labels"][i, j]), float(arrays["neighbor_similarity"][i, j])
            name = _name(names, label)
            mark = "" if not names else "same" if label == own else "other"
            right, judged = right + (mark == "same"), judged + 1
            pictures.append(_picture(neighbor, f"{name}, similarity {similarity:.2f}".lstrip(", "), mark))
        title = f'<span class="name">{escape(_name(names, own))}</span>' if names else ""
        query = _picture(image, _name(names, own) or "picture")
        rows.append(f'<div class="strip">{query}{title}<span class="arrow">→</span>{"".join(pictures)}</div>')
    caption = "Left a test picture, right the training pictures whose features are most like its own, nearest first."
    if names:
        caption += f" Framed: of another class. {right} of these {judged} neighbours are of the same class."
    else:
        caption = caption.replace("a test picture", "a picture").replace("training pictures", "other pictures")
    return _panel("Nearest neighbours", f'<div class="strips">{"".join(rows)}</div>', caption)


def dimensions_panel(arrays: Mapping[str, np.ndarray]) -> str:
    """The pictures to which dimensions of the representation respond most, by the mask's weights."""
    if not {"dimension_indices", "dimension_images", "mask_final"} <= set(arrays):
        return ""
    weights = arrays["mask_final"]
    learned = float(np.ptp(weights)) > 1e-6
    count = len(arrays["dimension_indices"]) // 2
    titles = ("Kept most", "Kept least") if learned else ("Vary most", "Vary least")
    columns = [
        f"<div><h4>{title}: number and weight</h4>{''.join(_dimension(arrays, i) for i in places)}</div>"
        for title, places in zip(titles, (range(count), range(count, 2 * count)), strict=True)
    ]
    what = (
        "Dimensions with the largest and the smallest weights of the mask"
        if learned
        else "The mask treats all dimensions alike; these vary most and least over the test pictures"
    )
    return _panel(
        "What dimensions respond to",
        f'<div class="halves">{"".join(columns)}</div>',
        f"{what}: each with the test pictures for which it is largest. A dimension that stands for a class shows one "
        "kind of object; one that stands for a confounder shows one colour, texture or place instead.",
    )


def class_names(arrays: Mapping[str, np.ndarray]) -> list[str]:
    """The names of the classes; none if they are not known."""
    return [str(name) for name in arrays.get("class_names", ())]


def _dimension(arrays: Mapping[str, np.ndarray], i: int) -> str:
    index = int(arrays["dimension_indices"][i])
    weight = float(arrays["mask_final"][index])
    pictures = "".join(_picture(image, f"dimension {index}") for image in arrays["dimension_images"][i])
    return (
        f'<div class="strip"><span class="name"><b>#{index}</b> · {weight:.3g}'
        f"<small>{escape(_most_common(arrays, i))}</small></span>{pictures}</div>"
    )


def _most_common(arrays: Mapping[str, np.ndarray], i: int) -> str:
    """The class that most of a dimension's pictures are of."""
    names, labels = class_names(arrays), arrays["dimension_labels"][i]
    if not names or not float(arrays["dimension_spread"][i]) > 0:
        return "constant" if not float(arrays["dimension_spread"][i]) > 0 else ""
    values, counts = np.unique(labels, return_counts=True)
    return f"{counts.max()} of {len(labels)} {_name(names, int(values[counts.argmax()]))}"


def _name(names: Sequence[str], label: int) -> str:
    return names[label] if 0 <= label < len(names) else ""


def _panel(title: str, body: str, caption: str) -> str:
    return f'<figure class="panel wide"><h3>{title}</h3>{body}<figcaption>{escape(caption)}</figcaption></figure>'


def _picture(image: np.ndarray, title: str, mark: str = "") -> str:
    """A picture uint8 [height, width, 3] as an element."""
    text = escape(title)
    exact = max(image.shape) <= _LARGEST_PNG
    classes = " ".join(_classes(exact, mark))
    return f'<img class="{classes}" alt="{text}" title="{text}" src="{_data(image, exact)}">'


def _classes(exact: bool, mark: str) -> Iterator[str]:
    yield "thumb"
    if exact:
        yield "exact"
    if mark:
        yield mark


def _data(image: np.ndarray, exact: bool) -> str:
    from PIL import Image

    file = io.BytesIO()
    picture = Image.fromarray(np.ascontiguousarray(image))
    if exact:
        picture.save(file, "png", optimize=True)
    else:
        picture.save(file, "jpeg", quality=85)
    return f"data:image/{'png' if exact else 'jpeg'};base64,{base64.b64encode(file.getvalue()).decode()}"
