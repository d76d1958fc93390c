#!/usr/bin/env bash
# Renders the chart with its default values into kubernetes/relay.yaml. Needs helm 3.
set -euo pipefail
export LC_ALL=C
cd "$(dirname "${BASH_SOURCE[0]}")"

# The same files in the same order as relay/tests/operations/packaging.rs.
of_chart=(helm/outbox-relay/Chart.yaml helm/outbox-relay/values.yaml)
for file in helm/outbox-relay/templates/*; do
    if [[ -f "$file" ]]; then of_chart+=("$file"); fi
done
checksum="$(cat "${of_chart[@]}" | sha256sum | cut --delimiter=' ' --fields=1)"
{
    echo "# Rendered from ../helm/outbox-relay by ../render.sh; change the chart instead."
    echo "# chart: $checksum"
    helm template outbox-relay helm/outbox-relay --kube-version 1.31.0 --no-hooks --skip-tests | sed '/^# Source: /d'
} > kubernetes/relay.yaml.new
mv kubernetes/relay.yaml.new kubernetes/relay.yaml
