"""Images and other files: the bytes that arrive at each kind of server, and what is refused before it is sent."""

from __future__ import annotations

import base64
from hashlib import sha256
from pathlib import Path

import pytest
from google.cloud.storage import Client
from llmbeam_sandbox import Fault
from llmbeam_sandbox.core.records import ReceivedMedia

from airflow_provider_llmbeam.engine.pacing.gate import Gate
from airflow_provider_llmbeam.exceptions import JobFailedError, JobSpecError
from airflow_provider_llmbeam.pipeline.measure.estimate.run import make_estimate
from airflow_provider_llmbeam.pipeline.media import stored
from airflow_provider_llmbeam.spec import JobSpec
from airflow_provider_llmbeam.spec.model.media import is_below
from tests.clouds import trust_in_aiohttp
from tests.media_files import pdf, png

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 5
OTHER = b"\x89PNG\r\n\x1a\n" + bytes(reversed(range(256)))
INLINE = ReceivedMedia(mime_type="image/png", sha256=sha256(PNG).hexdigest(), size_bytes=len(PNG))


def put(name: str, content: bytes) -> str:
    Client().bucket("rows").blob(name).upload_from_string(content)
    return f"gs://rows/{name}"


@pytest.fixture
def kind():
    return "developer"


@pytest.mark.full
def test_audio_costs_what_the_server_bills_in_the_report_and_in_the_estimate(media_job, sandbox):
    (media_job.files / "call.wav").write_bytes(b"RIFF" + bytes(64))
    rows = [{"id": number, "image": str(media_job.files / "call.wav")} for number in range(60)]
    media_job.write(rows)
    estimate = make_estimate(JobSpec.parse(media_job.spec))
    sample = sandbox.token_bill.nano_usd
    ended = media_job.run(rows)
    billed = (sandbox.token_bill.nano_usd - sample) / 1e9
    (charge,) = sandbox.token_bill.charges
    assert charge.audio_tokens == 60 * 258 > charge.input_tokens / 2
    assert ended.report["cost_usd"] == pytest.approx(billed, rel=1e-4)
    assert estimate.cost_usd == pytest.approx(billed, rel=0.02)


def test_without_a_sample_audio_has_its_own_price(media_job, sandbox):
    (media_job.files / "call.wav").write_bytes(b"RIFF" + bytes(320_000 - 4))  # 10 s of 32 tokens
    media_job.write([{"id": 1, "image": str(media_job.files / "call.wav")}])
    price = {
        "input_usd_per_million_tokens": 1.0,
        "audio_input_usd_per_million_tokens": 5.0,
        "output_usd_per_million_tokens": 8.0,
    }
    changes = {"limits": {"price": price}, "generation": {"max_output_tokens": 100}}
    found = make_estimate(JobSpec.parse(media_job.spec | changes), sample_size=0)
    text_tokens = found.input_tokens - 320
    low, high = found.cost_usd_range
    assert low == pytest.approx((text_tokens * 1.0 + 320 * 5.0) / 1e6)
    assert found.cost_usd == high == pytest.approx(low + 100 * 8.0 / 1e6)
    assert len(sandbox.requests) == 0


each_server = pytest.mark.parametrize(
    "kind", ["vertex", *(pytest.param(other, marks=pytest.mark.full) for other in ("developer", "openai"))]
)


@pytest.fixture
def media_job(job, sandbox, google, kind, tmp_path):
    """A job whose rows name an image in the column `image`, against each kind of server."""
    gemini = {"type": "gemini", "name": "gemini-2.5-flash", "base_url": sandbox.gemini_url}
    job.spec["model"] = {
        "developer": gemini,
        "vertex": {**gemini, "project": "p", "location": "us-central1"},
        "openai": {"type": "openai", "name": "gemma-3-4b-it", "base_url": sandbox.openai_url},
        "openai.com": {"type": "openai", "name": "gpt-5-mini"},
    }[kind]
    job.files = tmp_path / "files"
    job.files.mkdir()
    media = {
        "uri": "{{ row.image }}",
        "root": [str(job.files), "gs://rows", "https://pictures.example", "ftp://h"],
    }
    job.spec["prompt"] = {"template": "Describe image {{ row.id }}.", "media": [media]}
    return job


def addresses(files: Path) -> dict[str, str]:
    (files / "a b.png").write_bytes(PNG)
    return {
        "data": f"data:image/png;base64,{base64.b64encode(PNG).decode()}",
        "path": str(files / "a b.png"),
        "file": (files / "a b.png").as_uri(),
        "gs": put("a.png", PNG),
        "https": "https://pictures.example/a.png?sig=1",
    }


def sent(sandbox) -> list[ReceivedMedia]:
    return [media for record in sandbox.requests for media in record.media]


@each_server
def test_the_bytes_of_each_file_arrive_or_the_address_that_the_server_reads_itself(media_job, sandbox, kind):
    found = addresses(media_job.files)
    ended = media_job.run([{"id": name, "image": uri} for name, uri in found.items()])
    assert ended.manifest["rows"]["answered"] == len(found)
    web = ReceivedMedia(mime_type="image/*" if kind == "openai" else "image/png", uri=found["https"])
    on_storage = ReceivedMedia(mime_type="image/png", uri=found["gs"]) if kind == "vertex" else INLINE
    assert sorted(map(str, sent(sandbox))) == sorted(map(str, [INLINE, INLINE, INLINE, on_storage, web]))


@pytest.mark.full
@pytest.mark.parametrize("kind", ["developer", "vertex", "openai.com", "openai"])
def test_images_and_documents_are_answered_and_a_missing_file_is_a_failed_row_with_its_name(
    media_job, sandbox, google, kind, monkeypatch
):
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    trust_in_aiohttp(google, monkeypatch)
    images = {f"{number}.png": png(64, 48, shade=number) for number in range(10)}
    documents = {f"{number}.pdf": pdf(f"Invoice {number}", "Terms") for number in range(9)}
    for name, content in (images | documents).items():
        (media_job.files / name).write_bytes(content)
    names = [*images, *documents, "lost.pdf"]
    ended = media_job.run([{"id": name, "image": str(media_job.files / name)} for name in names])
    failed = {row["id"]: row["llmbeam_error"] for row in ended.dead_letter}
    taken = images
    if kind == "openai":  # vLLM, Ollama and llama.cpp have no part of a message for documents
        assert all("does not take application/pdf" in failed.pop(name)["message"] for name in names[10:])
    else:
        taken = images | documents
        message = failed.pop("lost.pdf")["message"]
        assert "lost.pdf' does not exist on this machine. Nothing was sent for this row." in message
    assert not failed
    assert sorted(row["id"] for row in ended.answers) == sorted(taken)
    expected = [sha256(content).hexdigest() for content in taken.values()]
    assert sorted(media.sha256 for media in sent(sandbox)) == sorted(expected)
    assert {media.mime_type for media in sent(sandbox)} == (
        {"image/png"} if kind == "openai" else {"image/png", "application/pdf"}
    )


@pytest.mark.full
def test_neither_journal_nor_report_holds_the_bytes_of_a_file(media_job, sandbox):
    media_job.run([{"id": "path", "image": addresses(media_job.files)["path"]}])
    encoded = base64.b64encode(PNG)[:60]
    texts = [path.read_bytes() for path in media_job.out.rglob("*") if path.is_file()]
    assert len(texts) > 2
    assert not any(encoded in text or PNG[:60] in text for text in texts)


def test_a_changed_file_at_the_same_path_is_asked_again_and_an_equal_one_elsewhere_is_not(media_job, sandbox):
    first, second = media_job.files / "a.png", media_job.files / "copy.png"
    first.write_bytes(PNG)
    media_job.spec["prompt"]["template"] = "Describe the image."
    assert media_job.run([{"id": 1, "image": str(first)}]).origins["fresh"] == 1
    second.write_bytes(PNG)
    assert media_job.run([{"id": 1, "image": str(second)}]).origins["resumed"] == 1
    first.write_bytes(OTHER)
    assert media_job.run([{"id": 1, "image": str(first)}]).origins["fresh"] == 1
    assert [media.sha256 for media in sent(sandbox)] == [sha256(content).hexdigest() for content in (PNG, OTHER)]


@pytest.mark.full
def test_a_changed_object_at_the_same_address_is_asked_again(media_job, sandbox):
    media_job.run([{"id": 1, "image": put("a.png", PNG)}])
    assert media_job.run([{"id": 1, "image": put("a.png", PNG)}]).origins["resumed"] == 1
    assert media_job.run([{"id": 1, "image": put("a.png", OTHER)}]).origins["fresh"] == 1


def shown(path: str) -> str:
    return path if len(path) <= 60 else f"{path[:30]}…{path[-29:]}"


REFUSED = {
    "missing": ("{files}/no.png", "the file {uri} does not exist on this machine."),
    "missing object": ("gs://rows/no.png", "the object {uri} does not exist."),
    "directory": ("{files}/sub.png", "the file {uri} cannot be read: Is no regular file."),
    "outside": ("/etc/x.png", "{uri} is below none of the 4 of `root`, the only files that rows may name."),
    "dots": ("{files}/../x.png", "{uri} is below none of the 4 of `root`, the only files that rows may name."),
    "filesystem": ("hdfs://h/x.png", "{uri} is below none of the 4 of `root`, the only files that rows may name."),
    "no type": (
        "{files}/plain",
        "no MIME type follows from name or first bytes of {uri}. Set `mime_type`,",
    ),
    "empty": ("{files}/empty.png", "{uri} is empty. Expected a file of at least 1 byte."),
    "page": ("{files}/page.png", "{uri} is a page of HTML by its first bytes, perhaps that of an error."),
    "nothing": ("", "the address is empty. Expected the address of a file in every row."),
    "type": ("{files}/a.svg", "does not take image/svg+xml ({uri}). Expected PNG, JPEG, WebP, HEIC, PDF,"),
    "base64": ("data:image/png;base64,???", "'data:image/png;base64,???…' is not base64"),
    "no comma": ("data:image/png", "has no comma. Expected data:image/png;base64,…"),
    "scheme": ("ftp://h/a.png", "{uri} is no file that can be read here. Expected gs://bucket/name,"),
}


@each_server
def test_what_cannot_be_sent_fails_its_row_with_a_sentence_before_a_request(media_job, sandbox, kind):
    (media_job.files / "sub.png").mkdir()
    contents = {"plain": b"plain", "empty.png": b"", "a.svg": b"<svg/>", "a.txt": b"text", "ok.png": PNG}
    contents["page.png"] = b"<!doctype html><title>404</title>"
    for name, content in contents.items():
        (media_job.files / name).write_bytes(content)
    files = str(media_job.files)
    cases = {}
    for case, (uri, sentence) in REFUSED.items():
        address = uri.replace("{files}", files)
        named = sentence.replace("{uri}", repr(shown(address))).replace("{files}", repr(shown(files)))
        cases[case] = (address, named)
    if kind == "openai":
        cases["type"] = (f"{files}/a.txt", "does not take text/plain")
    rows = [{"id": case, "image": uri} for case, (uri, _) in cases.items()]
    ended = media_job.run([*rows, {"id": "ok", "image": str(media_job.files / "ok.png")}])
    assert len(ended.dead_letter) == len(rows)
    for failed in ended.dead_letter:
        error = failed["llmbeam_error"]
        assert (error["kind"], error["attempts"]) == ("media_error", 0)
        assert error["message"].startswith("`prompt.media.0`: ")
        assert error["message"].endswith("Nothing was sent for this row.")
        assert cases[failed["id"]][1] in error["message"]
        assert len(error["message"]) <= 240
    assert sent(sandbox) == [INLINE]


@pytest.mark.parametrize("name", ["a.jpg", "a.jfif", "a"])
def test_a_file_is_sent_as_what_its_first_bytes_say(media_job, sandbox, name):
    (media_job.files / name).write_bytes(PNG)
    media_job.run([{"id": 1, "image": str(media_job.files / name)}])
    assert sent(sandbox) == [INLINE]


def test_a_row_may_not_choose_a_file_of_the_worker_unless_the_spec_names_its_directory(media_job, sandbox):
    path = media_job.files / "a.png"
    path.write_bytes(PNG)
    media_job.spec["prompt"]["media"] = [{"uri": "{{ row.image }}"}]
    with pytest.raises(JobSpecError, match="`root` does not say which files of this machine rows may read"):
        media_job.run([{"id": 1, "image": str(path)}])
    media_job.spec["prompt"]["media"] = [{"uri": f"{media_job.files}/{{{{ row.image }}}}"}]
    ended = media_job.run([{"id": 1, "image": "a.png"}, {"id": 2, "image": "../rows.jsonl"}])
    assert ended.manifest["rows"]["answered"] == 1
    assert sent(sandbox) == [INLINE]


@pytest.mark.full
def test_a_link_to_a_file_outside_is_refused(media_job, sandbox, tmp_path):
    (tmp_path / "secret.png").write_bytes(PNG)
    (media_job.files / "a.png").symlink_to(tmp_path / "secret.png")
    with pytest.raises(JobSpecError, match="rows lack a file that can be sent"):
        media_job.run([{"id": 1, "image": str(media_job.files / "a.png")}])
    assert not sent(sandbox)


@pytest.mark.full
def test_an_object_that_may_not_be_read_fails_its_row_only(media_job, sandbox):
    uri = put("a.png", PNG)
    ok = media_job.files / "ok.png"
    ok.write_bytes(OTHER)
    sandbox.faults.queue("storage.objects.get", Fault(kind="error", http_status=403))
    ended = media_job.run([{"id": 1, "image": uri}, {"id": 2, "image": str(ok)}])
    assert "Cloud Storage refused 'gs://rows/a.png'" in ended.dead_letter[0]["llmbeam_error"]["message"]


@pytest.mark.full
def test_an_estimate_finds_the_answers_of_the_job(media_job, sandbox):
    found = addresses(media_job.files)
    media_job.run([{"id": name, "image": uri} for name, uri in found.items()])
    requests = len(sandbox.requests.paid())
    estimate = make_estimate(JobSpec.parse(media_job.spec), 8)
    assert estimate.requests == 0
    assert len(sandbox.requests.paid()) == requests


def test_a_local_file_with_dataflow_is_refused_while_the_spec_is_read(media_job):
    spec = media_job.spec | {
        "source": {"uri": "gs://rows/in.jsonl", "key": ["id"]},
        "sink": {"uri": "gs://rows/out"},
        "runner": {
            "type": "dataflow",
            "project": "my-project",
            "location": "us-central1",
            "environment_secrets": {"GOOGLE_API_KEY": "projects/p/secrets/k/versions/latest"},
        },
    }
    prompt = {"template": "{{ row.id }}", "media": [{"uri": "/data/{{ row.image }}"}]}
    with pytest.raises(JobSpecError, match=r"`prompt\.media\.0\.uri`.*file of this machine.*use gs://"):
        JobSpec.parse(spec | {"prompt": prompt})


@pytest.mark.full
def test_a_service_that_does_not_answer_ends_the_job_instead_of_failing_each_row(media_job, sandbox, monkeypatch):
    monkeypatch.setattr(stored, "_RETRY_SECONDS", 0.01)
    uri = put("a.png", PNG)
    sandbox.faults.every("storage.objects.get", 1, Fault(kind="error", http_status=503))
    with pytest.raises(
        JobFailedError, match=r"`prompt\.media\.0`: 'gs://rows/a\.png' could not be read for 0\.01 s"
    ):
        media_job.run([{"id": number, "image": uri} for number in range(3)])
    assert not sent(sandbox)


@pytest.mark.full
@pytest.mark.parametrize("kind", ["developer", "vertex"])
def test_tokens_of_media_are_in_the_estimate_before_anything_is_sent_and_in_what_the_governor_reserves(
    media_job, sandbox, monkeypatch, kind
):
    reserved = []
    wait_for_admission = Gate.wait_for_admission

    def waiting(gate, reserve, **others):
        reserved.append(reserve())
        return wait_for_admission(gate, reserve, **others)

    monkeypatch.setattr(Gate, "wait_for_admission", waiting)
    files = {"small.png": png(300, 200), "large.png": png(960, 540), "two.pdf": pdf("a", "b")}
    for name, content in files.items():
        (media_job.files / name).write_bytes(content)
    media_job.write([{"id": name, "image": str(media_job.files / name)} for name in files])
    media_job.spec["generation"] = {"max_output_tokens": 10}
    estimate = make_estimate(JobSpec.parse(media_job.spec), 0)
    assert not sent(sandbox)
    ended = media_job.run()
    billed = sum(record.input_tokens for record in sandbox.requests)
    assert ended.report["tokens"]["input"] == billed
    assert estimate.input_tokens == pytest.approx(billed, rel=0.02)
    assert estimate.input_tokens > (1 + 6 + 2) * 258
    assert estimate.cost_usd == pytest.approx(billed * 0.3e-6 + 3 * 10 * 2.5e-6, rel=0.05)
    assert sum(reserved) == estimate.input_tokens + 3 * 10


def test_an_address_on_a_filesystem_that_is_not_there_fails_its_row_only(media_job, sandbox):
    media_job.spec["prompt"]["media"] = [{"uri": "{{ row.image }}"}]
    image = f"data:image/png;base64,{base64.b64encode(PNG).decode()}"
    hostile = ["hdfs://name-node/a.png", "file://[", "gs://", "\ud800.png", "s3://b/a.png"]
    ended = media_job.run([{"id": number, "image": uri} for number, uri in enumerate([*hostile, image])])
    assert ended.kinds == {"media_error": len(hostile)}
    assert sent(sandbox) == [INLINE]


def test_a_row_has_the_model_fetch_no_address_beside_the_root(media_job, sandbox):
    inside, outside = "https://pictures.example/a.png", "http://169.254.169.254/latest/meta-data/a.png"
    ended = media_job.run([{"id": 1, "image": inside}, {"id": 2, "image": outside}])
    assert [row["id"] for row in ended.dead_letter] == [2]
    assert [media.uri for media in sent(sandbox)] == [inside]


@pytest.mark.parametrize("way_up", ["..", "..?x", "..#x", "..;x", ".\t.", ".%0A.", "..\\x", "%2e%2e"])
def test_no_address_leads_out_of_the_root_however_its_server_reads_it(way_up):
    assert is_below("https://h/pictures/a..b.png?size=1", "https://h/pictures")
    assert not is_below(f"https://h/pictures/{way_up}", "https://h/pictures")


def test_links_that_take_the_place_of_checked_files_send_no_other_file(media_job, sandbox, monkeypatch, tmp_path):
    (tmp_path / "secret.png").write_bytes(OTHER)
    for number in range(6):
        (media_job.files / f"{number}.png").write_bytes(PNG)
    identify = stored.MediaIdentifier.identify

    def then_swapped(identifier, found):
        checked = identify(identifier, found)
        path = media_job.files / f"{found.row['id']}.png"
        path.unlink()
        path.symlink_to(tmp_path / "secret.png")
        return checked

    monkeypatch.setattr(stored.MediaIdentifier, "identify", then_swapped)
    with pytest.raises(JobSpecError, match="6 of 6 rows lack a file that can be sent"):
        media_job.run([{"id": number, "image": f"{media_job.files}/{number}.png"} for number in range(6)])
    assert not sent(sandbox)
