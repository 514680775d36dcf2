"""SimCLR + MetaMask on ImageNet with ResNet-50, hyper-parameters carried over as in the paper, for GPU or TPU pods.

    python run_pretrain.py --config configs/imagenet_resnet50.py --workdir runs/imagenet

The paper gives neither batch nor epochs nor optimiser; LARS at batch 4096 follows SimCLR. Not run yet:
no result is claimed.
"""

from ml_collections import ConfigDict

from metamask_jax.config import default_config


def get_config() -> ConfigDict:
    """What differs from the defaults."""
    config = default_config()
    config.train.update(batch_size=4096, epochs=100, dtype="bfloat16", remat=True)
    config.data.update(name="imagenet2012", image_size=224)
    with config.data.options.unlocked():
        config.data.options.update(image_size=224, views=2)  # decoded and cropped on the host
    config.encoder.update(name="resnet50", stem="imagenet")
    config.loss.update(drr_head=(8192, 8192, 8192), chunk_size=1024)
    config.optimizer.update(
        name="lars",
        learning_rate=4.8,  # 0.3 * batch / 256
        weight_decay=1e-6,
        decay_norm_and_bias=False,
        schedule="cosine",
        warmup_epochs=10.0,
    )
    config.eval.update(every_epochs=10, k=200, temperature=0.1, size=50_000)
    return config
