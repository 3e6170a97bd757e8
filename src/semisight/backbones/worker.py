"""A process that works out features of some images into a shard of the cache; started by data/feature_cache.py.

    python -m semisight.backbones.worker < job

The job is JSON: the network, the shards to try, and [number, name, views] of the images, which are files below `folder`
or rows of `array`, a .npy file. What is printed is one line of JSON per image: see `data.feature_worker.Answer`.
"""

import json
import signal
import sys
from pathlib import Path

import numpy as np

from semisight.backbones.onnx_file import OnnxBackbone
from semisight.data.feature_worker import Answer, ShardWriter, from_array, from_files, work_out


def main() -> None:
    # When the user interrupts, or the process that started this one is gone, it ends without a word.
    for name in ("SIGINT", "SIGPIPE"):
        if number := getattr(signal, name, None):
            signal.signal(number, signal.SIG_DFL)
    job = json.load(sys.stdin)
    backbone = OnnxBackbone.from_job(job["network"])
    read = from_array(np.load(job["array"], mmap_mode="r")) if job["array"] else from_files(job["folder"])
    shard = ShardWriter(Path(job["cache"]), job["old"], job["new"], int(job["row_bytes"]))

    def answer(line: Answer) -> None:
        print(json.dumps(line), flush=True)

    work_out(job["files"], read, backbone, shard, answer)
    shard.close()


if __name__ == "__main__":
    main()
