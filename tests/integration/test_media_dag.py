"""The Dag of `dags/` that reads images and documents."""

from __future__ import annotations

import json
import runpy
from hashlib import sha256
from pathlib import Path

import pytest

from tests.media_files import pdf, png

pytestmark = [pytest.mark.full, pytest.mark.slow]
ROOT = Path(__file__).resolve().parents[2]


def test_the_dag_reads_images_and_documents_and_names_the_file_that_is_missing(
    run_dag, connection, tmp_path, monkeypatch, sandbox
):
    monkeypatch.setenv("LLMBEAM_DATA", str(tmp_path))
    folder = tmp_path / "invoices"
    folder.mkdir()
    files = {f"{number}.png": png(400, 200 + number) for number in range(10)}
    files |= {f"{number}.pdf": pdf(f"Invoice {number}", "Terms") for number in range(9)}
    for name, content in files.items():
        (folder / name).write_bytes(content)
    rows = [f"{number},Shop,{name}\n" for number, name in enumerate([*files, "lost.pdf"])]
    (tmp_path / "invoices.csv").write_text("invoice_id,sender,file\n" + "".join(rows))
    dag = runpy.run_path(str(ROOT / "dags" / "read_documents.py"))["dag"]
    run, states = run_dag(dag)
    assert states == {"read": "success"}
    manifest = run.get_task_instance("read").xcom_pull(task_ids="read")
    assert manifest["rows"] == {"read": 20, "answered": 19, "dead_letter": 1, "skipped": 0}
    received = [media.sha256 for record in sandbox.requests for media in record.media]
    assert sorted(received) == sorted(sha256(content).hexdigest() for content in files.values())
    failed = json.loads(Path(manifest["dead_letter_uri"]).read_text())
    assert failed["file"] == "lost.pdf"
    assert "lost.pdf' does not exist" in failed["llmbeam_error"]["message"]
