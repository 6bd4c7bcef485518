from __future__ import annotations

import pytest

from airflow_provider_llmbeam.exceptions import CloudNotFoundError, CloudUnavailableError, RequestRefusedError
from airflow_provider_llmbeam.hooks.storage import ObjectStorage, StorageHook, files_at


def test_cloud_storage_has_its_own_client():
    assert isinstance(files_at("gs://b/x", "google_cloud_default"), StorageHook)
    assert isinstance(files_at("/mnt/x", "google_cloud_default"), ObjectStorage)


def test_what_is_written_is_read_listed_and_deleted(tmp_path):
    files = ObjectStorage()
    assert files.list(f"{tmp_path}/a/1-") == []
    files.write(f"{tmp_path}/a/1-x.json", "{}")
    files.write(f"{tmp_path}/a/2-x.json", "{}")
    assert files.list(f"{tmp_path}/a/1-") == [f"{tmp_path}/a/1-x.json"]
    assert files.read(f"{tmp_path}/a/1-x.json") == "{}"
    assert files.exists(f"{tmp_path}/a/1-x.json")
    assert not files.exists(f"{tmp_path}/a/3")
    files.write(f"{tmp_path}/a/1-y.parquet", b"PAR1\xff")
    assert (tmp_path / "a" / "1-y.parquet").read_bytes() == b"PAR1\xff"
    files.delete(f"{tmp_path}/a/1-y.parquet")
    assert files.list(f"{tmp_path}/a/1-") == [f"{tmp_path}/a/1-x.json"]


def test_errors_name_the_file(tmp_path):
    files = ObjectStorage()
    with pytest.raises(CloudNotFoundError, match=r"There is no file at '.*/missing'\."):
        files.read(f"{tmp_path}/missing")
    with pytest.raises(CloudUnavailableError, match="did not answer"):
        files.read(str(tmp_path))
    with pytest.raises(RequestRefusedError, match=r"'nosuch://b/x' cannot be opened by Airflow's object storage"):
        files.read("nosuch://b/x")


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_a_link_in_the_place_of_a_written_file_is_not_followed(tmp_path, scheme):
    (tmp_path / "airflow.cfg").write_text("of the worker")
    (tmp_path / "stop").symlink_to(tmp_path / "airflow.cfg")
    with pytest.raises(CloudUnavailableError, match="Is a symbolic link"):
        ObjectStorage().write(f"{scheme}{tmp_path}/stop", "")
    assert (tmp_path / "airflow.cfg").read_text() == "of the worker"
