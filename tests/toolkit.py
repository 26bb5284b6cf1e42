"""What every test is built from, under one name.

This is the independent side of the tests: expected bytes come from numpy over whole tensors and from the
`safetensors` library. Nothing here touches the package under test except `vime`, `vime_plain` and `pull`,
which run its command line in this process.
"""

from tests.toolkit_command import Result, parse_result, pull, vime, vime_plain
from tests.toolkit_files import (
    STATE_DIRECTORY,
    join_shard,
    rewrite_index,
    rewrite_shard,
    snapshot,
    split_shard,
)
from tests.toolkit_models import Model, Tensor, as_bytes_array, make_model, step
from tests.toolkit_streams import (
    DEFAULT_EXTRA_FILES,
    INDEX_NAME,
    apply_version,
    compress,
    decode_delta,
    digest,
    digests,
    encode_delta,
    publish_delta,
    publish_full,
    read_checkpoint,
    version_path,
    write_checkpoint,
    write_index,
    write_safetensors,
)

__all__ = [
    "DEFAULT_EXTRA_FILES",
    "INDEX_NAME",
    "STATE_DIRECTORY",
    "Model",
    "Result",
    "Tensor",
    "apply_version",
    "as_bytes_array",
    "compress",
    "decode_delta",
    "digest",
    "digests",
    "encode_delta",
    "join_shard",
    "make_model",
    "parse_result",
    "publish_delta",
    "publish_full",
    "pull",
    "read_checkpoint",
    "rewrite_index",
    "rewrite_shard",
    "snapshot",
    "split_shard",
    "step",
    "version_path",
    "vime",
    "vime_plain",
    "write_checkpoint",
    "write_index",
    "write_safetensors",
]
