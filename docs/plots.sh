#!/bin/sh
# Extracts every plot of a page that --report wrote as an SVG file: <folder>/<number>-<title>.svg
#
#   forerun-bench hash --all --report target/hash.html
#   sh docs/plots.sh target/hash.html docs/results/<run>
set -eu
page=${1:?the page that --report wrote}
folder=${2:?the folder to write to}
mkdir -p "$folder"
awk -v folder="$folder" '
function text(line) { gsub(/<[^>]*>/, "", line); return line }
function name(title) { title = tolower(title); gsub(/[^a-z0-9]+/, "-", title); return title }
# The colours and the looks of plots; the rest is for the page around them.
/<style>/, /<\/style>/ {
    line = $0; gsub(/<\/?style>/, "", line)
    if (line ~ /^(:root|  --s|@media \(prefers|  :root|    --s|svg [.t]|\.s[0-9])/) css = css line \
        "\n"
}
/<h2>/ { section = text($0) }
/<figcaption>/ {
    title = $0; sub(/.*<b>/, "", title); sub(/<\/b>.*/, "", title)
    note = ""
    if ($0 ~ /<span>/) { note = $0; sub(/.*<span>/, "", note); sub(/<\/span>.*/, "", note) }
}
/<svg / {
    box = $0; sub(/.*viewBox="/, "", box); sub(/".*/, "", box); split(box, side, " ")
    plot = ""; inside = 1; next
}
/<\/svg>/ && inside {
    inside = 0
    file = sprintf("%s/%02d-%s.svg", folder, ++count, name(section "-" title))
    sub(/-+\.svg$/, ".svg", file)
    width = side[3] + 32; height = side[4] + 80
    printf \
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"-16 -68 %d %d\" width=\"%d\" height=\"%d\" role=\"img\">\n", \
        width, height, width, height > file
    print "<title>" section ": " title "</title>\n<style>" > file
    printf "%s", css > file
    print ".card { fill: var(--card); stroke: var(--line); }\n</style>" > file
    printf \
        "<rect x=\"-15.5\" y=\"-67.5\" width=\"%d\" height=\"%d\" rx=\"8\"" \
        " class=\"card\"/>\n", width - 1, height - 1 > file
    print "<text class=\"head\" x=\"4\" y=\"-40\" font-size=\"16\">" title "</text>" > file
    print "<text class=\"soft\" x=\"4\" y=\"-20\">" note "</text>" > file
    printf "%s</svg>\n", plot > file
    close(file)
}
inside { line = $0; gsub(/<title>[^<]*<\/title>/, "", line); plot = plot line "\n" }
END { if (count == 0) { print "this page has no plots" > "/dev/stderr"; exit 1 } }' "$page"
for file in "$folder"/[0-9][0-9]-*.svg; do
    awk -f "$(dirname "$0")/plot-colours.awk" "$file" > "$file.new"
    mv "$file.new" "$file"
done
