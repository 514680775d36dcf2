"""The one place where hyper-parameters have defaults; a method's own, where they are None here, stand in its file."""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder


def default_config() -> ConfigDict:
    """The defaults: MetaMask on SimCLR with the authors' program's hyper-parameters, on the embedded dataset."""
    config = ConfigDict()
    config.train = ConfigDict(
        {
            "batch_size": 256,  # over all devices and processes
            "epochs": 20,
            "steps": placeholder(int),  # overrides epochs
            "seed": 0,
            "dtype": "float32",  # of the network's computation; parameters and losses stay float32
            "accumulate": 1,  # micro-batches a step, each with its own losses and trial step; gradients are averaged
            "remat": False,  # recompute the activations inside the encoder's blocks in the backward pass to save memory
        }
    )
    config.data = ConfigDict(
        {
            "name": "confounded_shapes",
            "dir": "~/tensorflow_datasets",
            "size": placeholder(int),  # only the first n training images
            "image_size": 32,
            "augmentation": "simclr",
            "views": 2,
            "small_views": 0,  # further, smaller crops of each image, for methods that have a use for them (SwAV)
            "small_size": 16,  # their side in pixels
            "crop_split": 0.14,  # with small views: they show less than this share of the image, the others more
            "prefetch": 2,  # batches prepared ahead
            "options": ConfigDict({}, convert_dict=True),  # of the dataset itself, e.g. {"path": "pictures/"}
        }
    )
    config.encoder = ConfigDict({"name": "resnet18", "width": 1.0, "stem": "cifar"})
    # None: the method's own default, which stands in its file in methods/ and which `validate` fills in. A method
    # ignores the keys that are not its own.
    config.method = ConfigDict(
        {
            "name": "simclr",
            "head": placeholder(tuple),  # widths of the projection head's layers
            "head_norm": placeholder(bool),  # BatchNorm after the projection head's last layer, of BYOL
            "predictor": placeholder(int),  # width of the predictor's hidden layer
            "temperature": placeholder(float),
            "positive_prior": placeholder(float),  # tau_plus of DCL and HCL
            "concentration": placeholder(float),  # beta of HCL
            "bank_size": placeholder(int),  # past projections as further negatives (for SwAV's codes); 0: none
            "bank_start": placeholder(float),  # epoch from which SwAV collects them
            "queue_size": placeholder(int),  # of MoCo's keys, NNCLR's support set
            "momentum": placeholder(float),  # of a target's moving average (at the start, for BYOL), of CMC's memories
            "prototypes": placeholder(int),  # of SwAV
            "freeze_epochs": placeholder(float),  # epochs before SwAV's prototypes learn
            "epsilon": placeholder(float),  # entropy of SwAV's codes
            "iterations": placeholder(int),  # of Sinkhorn and Knopp's algorithm
            "negatives": placeholder(int),  # memories of other images that CMC contrasts with
            "num_classes": placeholder(int),  # of supervised training
            "dropout": 0.0,  # share of the features set to zero, for any method
            "dropout_shared": False,  # the same ones in all views of an image
        }
    )
    config.loss = ConfigDict(
        {
            "alpha": 10.0,  # weight of the method's loss beside redundancy reduction (Eq. 5)
            "drr": True,  # redundancy reduction on or off
            "drr_head": (2048, 2048, 2048),
            "off_diagonal_weight": 0.005,  # lambda of Eq. 2
            "centered": True,
            "unbiased": True,
            "chunk_size": placeholder(int),  # None: all at once
        }
    )
    config.mask = ConfigDict(
        {
            "learn": True,
            "activation": "sigmoid",
            "learning_rate": 1e-3,
            "momentum": 0.9,
            "weight_decay": 5e-4,
            "schedule": "cosine_epochs",
        }
    )
    config.meta = ConfigDict(
        {
            "estimator": "exact",
            "every": 1,  # regular steps to one meta step
            # Through the optimiser's momentum and decay, or a plain "gradient" step; lookahead takes the real step.
            "trial": "optimizer",
            "learning_rate": placeholder(float),  # of a plain trial step; None: the network's at that moment
            "head_learning_rate": placeholder(float),  # the same for everything but the encoder
        }
    )
    config.optimizer = ConfigDict(
        {
            "name": "sgd",
            "learning_rate": 1e-3,
            "momentum": 0.9,
            "weight_decay": 5e-4,
            "decay_norm_and_bias": True,  # weight decay on BatchNorm and biases too, as PyTorch does by default
            "schedule": "cosine_epochs",
            "warmup_epochs": 0.0,
            "trust_coefficient": 0.001,  # of LARS
        }
    )
    config.checkpoint = ConfigDict(
        {"every_steps": 500, "keep_last": 2, "keep_every": placeholder(int), "keep_best": True}
    )
    config.eval = ConfigDict(
        {"every_epochs": 10, "k": 5, "temperature": 1.0, "masked": True, "batch_size": 256, "size": placeholder(int)}
    )
    config.guard = ConfigDict({"max_skipped": 10, "min_feature_std": 0.05, "min_effective_rank": 2.0})
    config.log = ConfigDict({"every_steps": 10, "tensorboard": True, "wandb_project": placeholder(str)})
    return config.lock()
