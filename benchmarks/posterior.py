"""FedPA beside FedAvg with the same local steps, one client: what sampling adds (5 samples of 100
steps, linear regression).
"""

from benchmarks.timing import interleaved, report
from reproductions.fedpa_overhead import clients


def main() -> None:
    for features, repeats in ((100, 100), (1000, 100), (10_000, 30), (100_000, 15)):
        seconds = interleaved(clients(features, with_dense=features <= 1000), repeats=repeats)
        report(f"A client's round with {features} features, speed beside FedAvg", seconds, "FedAvg")


if __name__ == "__main__":
    main()
