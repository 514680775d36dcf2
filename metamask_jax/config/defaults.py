"""The one place where hyper-parameters have defaults.

A method's own hyper-parameters are None here; their defaults are in the method's file in methods/.
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder


def default_config() -> ConfigDict:
    """The defaults: MetaMask on SimCLR with the authors' program's hyper-parameters, on the embedded dataset."""
    config = ConfigDict()
    # Modules with `register(registry) -> registry`: methods, encoders, augmentations, optimisers of one's own.
    config.plugins = ()
    config.train = ConfigDict(
        {
            "batch_size": 256,  # over all devices and processes
            "epochs": 20,  # passes over the training images
            "steps": placeholder(int),  # overrides epochs
            "seed": 0,  # of everything random
            "dtype": "float32",  # of the network's computation; parameters and losses stay float32
            # Of the products of float32 numbers on accelerators: "default" rounds them to bfloat16 on TPUs and to TF32
            # on many GPUs, "high" takes three times and "highest" six times the products on TPUs. CPUs do not round.
            "precision": "default",
            "accumulate": 1,  # micro-batches per step, each with its own losses and trial step; gradients are averaged
            "remat": False,  # recompute the activations inside the encoder's blocks in the backward pass to save memory
            "kernels": "auto",  # which convolutions a CPU uses: "native" are ours, "xla" XLA's, "auto" the faster ones
        }
    )
    config.data = ConfigDict(
        {
            "name": "confounded_shapes",
            "dir": "~/tensorflow_datasets",  # where prepared datasets are
            "size": placeholder(int),  # only the first so many training images; None: all
            "image_size": 32,  # of the views, in pixels
            "augmentation": "simclr",
            "views": 2,  # of each image
            "small_views": 0,  # further, smaller crops of each image, for methods that have a use for them (SwAV)
            "small_size": 16,  # their side in pixels
            "crop_split": 0.14,  # with small views: they show less than this share of the image, the others more
            "prefetch": 2,  # batches prepared ahead
            "options": ConfigDict({}, convert_dict=True),  # of the dataset itself, e.g. {"path": "pictures/"}
        }
    )
    config.encoder = ConfigDict(
        {
            "name": "resnet18",
            "width": 1.0,  # factor on the number of channels
            "features": placeholder(int),  # length of the representation, by one more layer; None: the encoder's own
            "stem": "cifar",  # "imagenet" halves the picture twice before the first block of a ResNet
            # Of the convolutions: "he" (He's normal distribution, fan-out) or "torch" (PyTorch's default, uniform in
            # +-1/sqrt(fan_in)); None: the encoder's own, "he" for ResNets and "torch" for conv and fc.
            "init": placeholder(str),
        }
    )
    # Weights to begin with, instead of random ones; the optimisers start afresh.
    config.init = ConfigDict(
        {
            # The workdir of another run, what metamask-export has written, or "zoo:NAME", an encoder in the box.
            "from": placeholder(str),
            "parts": "encoder",  # what is taken over: the encoder, or "all": heads, mask and the method's state too
            "step": placeholder(int),  # of a workdir's checkpoints; None: the newest
        }
    )
    # None: the method's own default, which `validate` fills in. A method ignores the keys that are not its own.
    config.method = ConfigDict(
        {
            "name": "simclr",
            "head": placeholder(tuple),  # widths of the projection head's layers
            "head_norm": placeholder(bool),  # BatchNorm after the projection head's last layer, of BYOL
            "predictor": placeholder(int),  # width of the predictor's hidden layer
            "temperature": placeholder(float),
            "positive_prior": placeholder(float),  # tau_plus of DCL and HCL
            "concentration": placeholder(float),  # beta of HCL
            "bank_size": placeholder(int),  # past projections as further negatives, or for SwAV's codes; 0: none
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
            "drr_head": (2048, 2048, 2048),  # widths of redundancy reduction's own projection head
            "off_diagonal_weight": 0.005,  # lambda of Eq. 2
            "centered": True,  # subtract the batch's mean before correlating, which Eq. 3 does not
            "unbiased": True,  # divide by the unbiased standard deviation
            "chunk_size": placeholder(int),  # rows of similarities held in memory at a time; None: all
        }
    )
    config.mask = ConfigDict(
        {
            "learn": True,  # False: it keeps its first value
            "activation": "sigmoid",  # of the mask's logits; "identity": the weights themselves are learned
            "learning_rate": 1e-3,
            "momentum": 0.9,
            "weight_decay": 5e-4,
            "schedule": "cosine_epochs",
        }
    )
    config.meta = ConfigDict(
        {
            # Or first_order, finite_difference, lookahead, unrolled, neumann; exact_recomputed needs less memory.
            "estimator": "exact",
            "unroll": 2,  # trial steps of the estimator "unrolled"
            "neumann_terms": 5,  # of the series of the estimator "neumann"
            # What judges the mask: the same "batch" (the paper's), the "next" one, other "views" of the same images, or
            # a few "labels".
            "outer": "batch",
            "outer_augmentation": placeholder(str),  # of what judges; None: that of training
            "outer_loss": "neighbors",  # of labels: the soft nearest "neighbors", or the best "linear" head
            "outer_temperature": 0.1,  # of the soft nearest neighbours
            "labels": 0.05,  # images whose labels may be used: a share up to 1, or a number
            "scope": "all",  # what the trial step moves: "all" weights, or everything after the encoder, the "head"
            "every": 1,  # regular steps per meta step
            # The trial step has the optimiser's momentum and decay, or is a plain "gradient" step; lookahead takes the
            # real step.
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
        {
            "every_steps": 500,
            "keep_last": 2,  # how many of the newest are kept
            "keep_every": placeholder(int),  # those at multiples of this step are kept too
            "keep_best": True,  # the one with the highest kNN accuracy is kept too
        }
    )
    # kNN during training.
    config.eval = ConfigDict(
        {
            "every_epochs": 10,  # 0: at the end only
            "least_times": 0,  # evaluations over a run of so few epochs that there would be fewer
            "k": 5,
            "temperature": 1.0,
            "masked": True,  # on features times mask
            "batch_size": 256,
            "size": placeholder(int),  # only the first so many images of either split; None: all
            "dtype": placeholder(str),  # of the encoder's computation; None: train.dtype
        }
    )
    config.guard = ConfigDict(
        {
            "max_skipped": 10,  # steps in a row without finite gradients, after which the run stops
            "min_feature_std": 0.05,  # a smaller spread of the features is reported as collapse
            "min_effective_rank": 2.0,  # and so is a smaller rank
        }
    )
    config.log = ConfigDict({"every_steps": 10, "tensorboard": True, "wandb_project": placeholder(str)})
    return config.lock()
