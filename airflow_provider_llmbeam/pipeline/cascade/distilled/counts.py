"""What a report and a stored calibration say of a distilled stage."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from airflow_provider_llmbeam.pipeline.cascade.distilled.curve import LearningPoint


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True)


class DistilledConfusion(_Part):
    """Test draws by the class that `model` and the classifier answer."""

    expected: str
    answer: str
    draws: int


class DistilledClass(_Part):
    """Test draws by the class that the classifier answers, and those of them that it keeps."""

    label: str
    draws: int
    kept: int


class DistilledExample(_Part):
    """A test draw on which classifier and `model` disagree; its prompt is masked if the job masks rows."""

    text: str
    expected: str
    answer: str
    score: float


class DistilledCounts(_Part):
    """What a distilled stage has learned, and how it compares with `model` on the test draws.

    Attributes:
        fit_uri: Address of its fit.
        learning_curve: What more labels have added.
        confusion: Numbers of draws by both answers, for jobs with classes.
        classes: What it keeps by class.
        uncertain: Ten disagreements with the lowest scores.
        confident: Ten disagreements with the highest scores.
        has_drifted: Whether it keeps another share of the rows of a later run than of the sample.
    """

    fit_uri: str
    learning_curve: list[LearningPoint]
    confusion: list[DistilledConfusion]
    classes: list[DistilledClass]
    uncertain: list[DistilledExample]
    confident: list[DistilledExample]
    has_drifted: bool = False
