"""How methods, datasets and accuracies are called in tables."""

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
    "confounded_shapes": "confounded shapes",
    "confounded_cifar10": "confounded CIFAR-10",
}
# Heads of columns -> what they show, where features without and with the mask are compared.
ACCURACIES = {"kNN of h (%)": "knn.accuracy", "kNN of h*m (%)": "knn.masked", "linear of h (%)": "linear.accuracy"}
SAME_RUN = "kNN of h*m, to h of the same run [95 %]"
FOUND = "AUC: a low weight means confounder"
