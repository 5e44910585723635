"""The section on the services' own figures for a terminal: agreement first, then what each load shows."""

from draftproof.report.grouping import order_loads, title_of_load
from draftproof.report.labels import arm_label
from draftproof.report.lines import align, bullets, section, wrap
from draftproof.report.service_rows import COMPARED, agreement_values
from draftproof.report.services import list_agreements, list_told, service_notes, service_sentence, uses_at
from draftproof.verdict.results import Results

TITLE = "What the services say of themselves"


def render_services(results: Results) -> list[str]:
    """Return the section's lines, none for a run without telemetry."""
    if not results.services:
        return []
    lines = [*wrap(service_sentence(results)), *_disagreements(results)]
    for load in order_loads(results):
        uses = uses_at(results, load)
        if uses:
            header = (title_of_load(results, load), *(arm_label(use.arm) for use in uses))
            lines += align([header, *((label, *texts) for label, texts in list_told(uses))])
    return section(TITLE, [*lines, *bullets(service_notes(results))])


def _disagreements(results: Results) -> list[str]:
    lines = []
    for row in list_agreements(results):
        client, service, *_ = agreement_values(row)
        place = f"{arm_label(row.arm)}, {title_of_load(results, row.load)}"
        quantity = COMPARED.get(row.quantity, row.quantity)
        figures = f"{quantity} {client} by the client, {service} by the service"
        lines += [f"{place}: {figures}; {row.text}."] if row.standing == "differs" else []
    return bullets(lines)
