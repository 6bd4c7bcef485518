from __future__ import annotations

from airflow_provider_llmbeam.pipeline.audit.feature import AuditFeature
from airflow_provider_llmbeam.pipeline.features import FEATURES, features_of
from airflow_provider_llmbeam.pipeline.privacy.feature import PrivacyFeature
from tests.unit.pipeline.conftest import job_of


def test_a_job_has_the_features_of_its_spec_alone_each_with_its_part() -> None:
    assert features_of(job_of()) == ()
    spec = job_of(safety={"audit": {"uri": "audit/"}, "privacy": {"columns": ["text"]}})
    audit, privacy = features_of(spec)
    assert (type(audit), audit.part) == (AuditFeature, spec.safety.audit)
    assert (type(privacy), privacy.part) == (PrivacyFeature, spec.safety.privacy)


def test_no_hook_has_one_feature_alone() -> None:
    hooks = ("check_keys", "change_prompts", "change_answers", "before_publication")
    for hook in hooks:
        assert sum(hook in vars(feature) for feature in FEATURES) > 1, hook
