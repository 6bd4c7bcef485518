"""Synthetic rows with personal data of ten kinds in the formats of four countries, and how much of it is found."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from faker import Faker

from airflow_provider_llmbeam.pipeline.privacy.detection import Detection
from airflow_provider_llmbeam.spec.safety import PatternsDetector
from airflow_provider_llmbeam.spec.safety.privacy import kinds_of

LOCALES = ("en_US", "en_GB", "de_DE", "fr_FR")
#: What makes a value of a kind, and its locale if only one country has such values.
KINDS: dict[str, tuple[Callable[[Faker], str], str | None]] = {
    "EMAIL": (lambda faker: faker.email(), None),
    "PHONE": (lambda faker: faker.phone_number(), None),
    "CREDIT_CARD": (lambda faker: faker.credit_card_number(), None),
    "IBAN": (lambda faker: faker.iban(), None),
    "IP_ADDRESS": (lambda faker: faker.ipv6() if faker.boolean() else faker.ipv4(), None),
    "MAC_ADDRESS": (lambda faker: faker.mac_address(), None),
    "URL": (lambda faker: faker.url(), None),
    "US_SSN": (lambda faker: faker.ssn(), "en_US"),
    # Those of Faker begin with ZZ, which is never given.
    "GB_NINO": (lambda faker: faker.bothify("J? ## ## ## ?", letters="ABC"), "en_GB"),
    "DE_SOCIAL_SECURITY": (lambda faker: faker.rvnr(), "de_DE"),
}
#: The numbers besides the value are no personal data.
_SENTENCES = {
    "en_US": (
        "Order {number} of {date}: please use {value} from now on. The total was ${amount}.",
        "My details are {value}, ticket {number}.",
        "{value} is what I gave you on {date}, and again in version 2.4.1.",
    ),
    "en_GB": (
        "Invoice {number}, dated {date}: please use {value} instead. We paid £{amount}.",
        "Can you change it to {value}? Reference {number}.",
        "{value} was on the form of {date} at 10:15.",
    ),
    "de_DE": (
        "Bestellung {number} vom {date}: bitte künftig {value} verwenden. Es waren {amount} €.",
        "Meine Angabe lautet {value}, Vorgang {number}.",
        "{value} steht auf dem Formular vom {date}, Seite 12 von 30.",
    ),
    "fr_FR": (
        "Commande {number} du {date} : merci d'utiliser {value}. Le total est de {amount} €.",
        "Voici mes coordonnées : {value}, dossier {number}.",
        "{value} figure sur le formulaire du {date} à 10 h 15.",
    ),
}
_DATES = {"en_US": "%m/%d/%Y", "en_GB": "%d/%m/%Y", "de_DE": "%d.%m.%Y", "fr_FR": "%d/%m/%Y"}


@dataclass(frozen=True)
class PlantedRow:
    """A text with one value."""

    kind: str
    locale: str
    text: str
    value: str


@dataclass
class Scores:
    """What was found: values by kind, those that are masked as a whole, and right and wrong findings."""

    planted: Counter[str] = field(default_factory=Counter)
    masked: Counter[str] = field(default_factory=Counter)
    right: Counter[str] = field(default_factory=Counter)
    wrong: Counter[str] = field(default_factory=Counter)

    def recall(self, kind: str) -> float:
        return self.masked[kind] / self.planted[kind]

    def precision(self, kind: str) -> float:
        return self.right[kind] / max(1, self.right[kind] + self.wrong[kind])


def planted_rows(per_kind: int, seed: int = 20) -> Iterator[PlantedRow]:
    """Makes rows, the same ones for the same seed."""
    rng = random.Random(seed)
    fakers = {locale: Faker(locale) for locale in LOCALES}
    for number, faker in enumerate(fakers.values()):
        faker.seed_instance(seed + number)
    for kind, (make, only) in KINDS.items():
        for index in range(per_kind):
            locale = only or LOCALES[index % len(LOCALES)]
            faker = fakers[locale]
            value = make(faker)
            text = rng.choice(_SENTENCES[locale]).format(
                value=value,
                number=rng.randrange(10**5, 10**7),
                date=faker.date_object().strftime(_DATES[locale]),
                amount=f"{rng.uniform(1, 5000):.2f}",
            )
            yield PlantedRow(kind, locale, text, value)


def scores_of(rows: Iterator[PlantedRow]) -> Scores:
    """Finds the values with the default countries, and URLs besides."""
    detection = Detection([PatternsDetector(entities=(*kinds_of(PatternsDetector()), "URL"))])  # type: ignore[arg-type]
    scores = Scores()
    for row in rows:
        begin = row.text.index(row.value)
        end = begin + len(row.value)
        scores.planted[row.kind] += 1
        covered = set[int]()
        for found in detection.find(row.text):
            covered.update(range(found.start, found.end))
            is_right = found.kind == row.kind and found.start < end and found.end > begin
            (scores.right if is_right else scores.wrong)[found.kind] += 1
        scores.masked[row.kind] += covered.issuperset(
            place for place in range(begin, end) if row.text[place].isalnum()
        )
    return scores


def found_rows(per_kind: int) -> list[PlantedRow]:
    """Returns rows whose value the default detectors find as a whole, of all kinds but URLs."""
    detection = Detection([PatternsDetector()])
    return [
        row
        for row in planted_rows(per_kind)
        if any(row.text[each.start : each.end] == row.value for each in detection.find(row.text))
    ]


def table(scores: Scores) -> str:
    """Returns the table of docs/evidence/privacy.md."""
    lines = ["| kind | recall | precision |", "|---|---|---|"]
    lines += [f"| `{kind}` | {scores.recall(kind):.1%} | {scores.precision(kind):.1%} |" for kind in KINDS]
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(scores_of(planted_rows(500))))
