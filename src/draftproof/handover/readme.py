"""README.txt of a package: what it is and how to check it with tools that every system has. Pure."""

from draftproof.store import RunContents
from draftproof.verdict.results import Results

_TEXT = """\
Handover package of the run "{run}"
{rule}

Verdict: {decision}. {sentence}
Evidence: {evidence}. Approved by: {approver}. Owner: {owner}. Rollback: {rollback}.
Measured and packed with draftproof {version}.

What is in it
-------------
plan.toml, manifest.json, workload.jsonl   the plan as used, facts of the run, the prompts that were asked
journal/, telemetry/                       raw data: a request, turn or reading a line, in the order written
results.json, report.html                  computed from the raw data; open report.html in a browser
envelope.json                              where speculation may run, for machines
contract.json                              what was approved, by whom, and which changes void it
bom.cdx.json                               bill of materials, CycloneDX 1.6
monitoring/                                Prometheus rules and a Grafana dashboard, where the run gives them
SHA256SUMS, MANIFEST.json                  sizes and hashes of all members; MANIFEST.json has one root hash
{withheld}
Check it with draftproof
------------------------
    draftproof verify PACKAGE.tar --public-key SIGNER.pub

This checks every byte, the signature and the order of the journal, computes results and report again from the
raw data, and compares them byte for byte. Add --deployment PLAN.toml to compare a service that runs with
contract.json.

Check it without draftproof
---------------------------
    tar -xf PACKAGE.tar && sha256sum -c SHA256SUMS

The signature, if there is one, is the file PACKAGE.tar.sig (Ed25519). With OpenSSL 3 and the signer's public
key as PEM:

    printf 'draftproof package signature v1\\n%s\\n' "$(sha256sum < PACKAGE.tar | cut -d' ' -f1)" > message
    tail -n 1 PACKAGE.tar.sig | base64 -d > signature
    openssl pkeyutl -verify -pubin -inkey SIGNER.pem -rawin -in message -sigfile signature

Hashes alone show damage, not authorship: whoever changes a file can make new hashes. Only a signature by a
key that you knew before shows who packed this.
"""
_WITHHELD = """
Texts are withheld: prompts, answers and what checks look for are salted digests. Lengths, times, counts,
labels and the outcome of every check are the run's own, and the results follow from them.
"""


def render_readme(contents: RunContents, results: Results, *, withheld: bool) -> str:
    """Return the text; the same run gives the same bytes."""
    approval = contents.plan.approval
    name = contents.manifest.run_name
    return _TEXT.format(
        run=name,
        rule="=" * (len(name) + 30),
        decision=results.verdict.decision,
        sentence=results.verdict.sentence,
        evidence=results.evidence,
        approver=approval.approver or "nobody is named",
        owner=approval.owner or "nobody is named",
        rollback=(approval.rollback_artefact or "nothing is named").rstrip("."),
        version=results.draftproof_version,
        withheld=_WITHHELD if withheld else "",
    )
