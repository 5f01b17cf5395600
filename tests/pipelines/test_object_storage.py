"""Traces on object storage: the bytes of a local folder, after a break too, read back by the same reader; DVC's remote."""

import re
import shutil
from argparse import ArgumentTypeError
from functools import partial
from pathlib import Path

import pytest
from moto.server import ThreadedMotoServer

from pipelines.measuring.provenance import source_hash
from pipelines.places import place_of
from pipelines.scale import workers
from pipelines.stages import traces
from pipelines.stages.traces import COLLECTING, TRAINING, loaded
from predictors.training.tables import TextTable
from tests.pipelines.toy_bench import toy_bench
from tests.trace_collection.collecting import contents, interrupted
from trace_collection.collection import collect
from trace_collection.texts import TextTraceConfig

TEXTS = {"gamma_max": 3, "candidates": 2, "prompts": [2, 2, 3], "max_new_tokens": 10, "layers": 2, "top": 4}
TEXTS |= {"prompts_per_shard": 2, "threads": 1}
BUCKET = "s3://bucket"


@pytest.fixture(scope="module", autouse=True)
def server():
    """A local S3 server with one bucket."""
    running = ThreadedMotoServer(port=0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    named = {"ENDPOINT_URL": f"http://{host}:{port}", "ACCESS_KEY_ID": "key", "SECRET_ACCESS_KEY": "secret"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in named.items():
            patch.setenv(f"AWS_{name}", value)
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        import s3fs

        s3fs.S3FileSystem().mkdir("bucket")
        yield named["ENDPOINT_URL"]
    running.stop()


@pytest.fixture(scope="module")
def args(tmp_path_factory):
    args = toy_bench(tmp_path_factory.mktemp("pair"), "traces", {"max_gigabytes": 0.1, "texts": TEXTS})
    args.of, args.out = "texts", args.output / "traces/texts"
    traces.run(args)
    return args


def test_a_trace_that_was_interrupted_ends_in_the_bytes_of_a_local_one(args, capsys):
    local, stored = args.out, place_of(f"{BUCKET}/traces/texts")
    make = partial(loaded, "texts", args.pair_folder, TextTraceConfig(**TEXTS), args.prompts)
    digest = source_hash(COLLECTING, but=TRAINING)
    with pytest.raises(KeyboardInterrupt), workers(make, 1, 1, args.pair_folder) as over:
        collect(over, stored, interrupted(5), 0.1, digest)
    assert 0 < len(list(stored.glob("part-*"))) < len(list(local.glob("part-*")))
    with pytest.raises(ValueError, match="collection did not finish"):
        TextTable.read(stored)
    (stored / "part-99999.parquet").write_bytes(b"of another collection")
    args.out = stored
    traces.run(args)
    kept = int(re.search(r"shards, (\d+)", capsys.readouterr().out)[1])
    assert contents(stored) == contents(local) and 0 < kept < len(list(local.glob("part-*")))
    there, here = TextTable.read(place_of(f"{BUCKET}/traces/texts")), TextTable.read(local)
    assert len(there) == len(here) > 0 and there.manifest == here.manifest


def test_a_damaged_shard_is_refused_and_collected_again(args):
    local, args.out = args.output / "traces/texts", place_of(f"{BUCKET}/damaged")
    traces.run(args)
    (args.out / "part-00001.parquet").write_bytes(b"damaged")
    with pytest.raises(ValueError, match="s3://bucket/damaged/part-00001.parquet: damaged shard"):
        TextTable.read(args.out)
    traces.run(args)
    assert contents(args.out) == contents(local)


def test_a_bucket_or_a_storage_that_is_not_there_is_named(monkeypatch):
    with pytest.raises(ArgumentTypeError, match="s3://other/traces cannot be reached"):
        place_of("s3://other/traces")
    with pytest.raises(ArgumentTypeError, match="nowhere://bucket"):
        place_of("nowhere://bucket")
    assert isinstance(place_of("data/traces"), Path)


def test_dvc_pushes_outputs_and_pulls_them(server, tmp_path, monkeypatch):
    from dvc.repo import Repo

    monkeypatch.chdir(tmp_path)
    with Repo.init(".", no_scm=True) as repo, repo.config.edit() as config:
        config["remote"]["storage"] = {"url": f"{BUCKET}/dvc", "endpointurl": server}
        config["core"]["remote"] = "storage"
    Path("bundle.json").write_text("{}\n")
    with Repo(".") as repo:
        repo.add("bundle.json")
        assert repo.push() == 1
    shutil.rmtree(".dvc/cache")
    Path("bundle.json").unlink()
    with Repo(".") as repo:
        repo.pull()
    assert Path("bundle.json").read_text() == "{}\n"
