#!/bin/sh
# Makes the README's picture: the last plot of rates on the demo's page, as a separate file that
# names the machine.
#
#   cargo run --release -- demo --report target/demo.html
#   sh docs/demo-picture.sh target/demo.html > docs/demo.svg
set -eu
page=${1:?the page that forerun demo wrote}
date=$(date -u -r "$page" +%F)
plot=$(awk -v date="$date" '
function text(line) { gsub(/<[^>]*>/, "", line); return line }
# The colours and the looks of plots, without the rest of the style of the page.
/<style>/, /<\/style>/ {
    line = $0; gsub(/<\/?style>/, "", line)
    if (line ~ /^(:root|  --s|@media \(prefers|  :root|    --s|svg [.t]|\.s[0-9])/) css = css line \
        "\n"
}
/<h2>.* entries,/ { data = text($0) }
/<dt>CPU</ { split($0, part, "<dd>"); machine = text(part[2]) }
/<svg .*Keys per second/ { plot = ""; inside = 1; next }
/<\/svg>/ { inside = 0 }
inside { plot = plot $0 "\n" }
END {
    if (plot == "" || data == "" || machine == "" || css == "") {
        print "this is not a page of forerun demo" > "/dev/stderr"
        exit 1
    }
    print \
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"-16 -68 912 440\" width=\"912\" height=\"440\" role=\"img\">"
    print "<title>Keys per second by batch size</title>"
    print "<style>"
    printf "%s", css
    print ".card { fill: var(--card); stroke: var(--line); }\n</style>"
    print \
        "<rect x=\"-15.5\" y=\"-67.5\" width=\"911\" height=\"439\" rx=\"8\"" \
        " class=\"card\"/>"
    print \
        "<text class=\"head\" x=\"4\" y=\"-40\" font-size=\"16\">" \
        "Keys per second, by batch size</text>"
    print "<text class=\"soft\" x=\"4\" y=\"-20\">" data "; " machine ", " date "</text>"
    printf "%s", plot
    print "</svg>"
}' "$page")
printf '%s\n' "$plot" | awk -f "$(dirname "$0")/plot-colours.awk"
