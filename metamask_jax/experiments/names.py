"""How methods and variants are called in tables."""

METHOD_NAMES = {
    "barlow_twins": "Barlow Twins",
    "swav": "SwAV",
    "simclr": "SimCLR",
    "cmc": "CMC",
    "byol": "BYOL",
    "simsiam": "SimSiam",
    "dcl": "DCL",
    "hcl": "HCL",
    "nnclr": "NNCLR",
    "moco": "MoCo",
    "supervised": "Supervised",
}
DATASET_NAMES = {
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "stl10": "STL-10",
    "tiny_imagenet": "IN-200",
    "imagenet2012": "ImageNet",
}
# The rows of the paper's ablations: label -> method and variant.
ABLATIONS = {
    "SimCLR": ("simclr", "alone"),
    "Barlow Twins": ("barlow_twins", "alone"),
    "SimCLR + Barlow Twins": ("simclr", "without_meta"),
    "MetaMask w/o drr": ("simclr", "without_drr"),
    "MetaMask": ("simclr", "metamask"),
}
