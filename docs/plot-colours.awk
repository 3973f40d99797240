# Gives a plot its light colours as attributes, for viewers that know no CSS variables. Where
# variables work, the style sheet stays on top and follows the reader's theme.
#
#   awk -f docs/plot-colours.awk < plot.svg
#
# The style sheet is that of a report: variables in `:root`, then rules such as `svg .grid { ... }`.

BEGIN { font = "font-family=\"system-ui, -apple-system, Segoe UI, sans-serif\" font-size=\"13\"" }
/<style>/ { in_style = 1; next }
/<\/style>/ { in_style = 0; read_style(); next }
in_style { css = css $0 "\n"; next }
/<svg / { root = $0; next }
/<title>/ && !title { title = $0; next }
{ body[++lines] = $0 }
END {
    sub(/>$/, " " attributes["text"] " " font ">", root)
    print root
    if (title) print title
    print "<style>\n@supports (color: var(--ink)) {"
    printf "%s", css
    print "}\n</style>"
    for (line = 1; line <= lines; line++) print coloured(body[line])
}

# The attributes of each class, from the rules of the style sheet.
function read_style(    text, count, rules, rule, at, names, of_names, each, name) {
    text = css
    gsub(/\n/, " ", text)
    # The variables of the dark theme.
    sub(/@media[^{]*\{[^{]*\{[^}]*\} *\}/, "", text)
    count = split(text, rules, "}")
    for (rule = 1; rule <= count; rule++) {
        at = index(rules[rule], "{")
        names = substr(rules[rule], 1, at - 1)
        if (names ~ /:root/) read_variables(substr(rules[rule], at + 1))
        of_names = split(names, each, ",")
        for (name = 1; name <= of_names; name++) {
            gsub(/^ +| +$/, "", each[name])
            sub(/^svg +/, "", each[name])
            if (each[name] ~ /^\.?[-a-z0-9]+$/) {
                sub(/^\./, "", each[name])
                attributes[each[name]] = as_attributes(substr(rules[rule], at + 1))
            }
        }
    }
}

function read_variables(text,    count, parts, part, colon, name) {
    count = split(text, parts, ";")
    for (part = 1; part <= count; part++) {
        colon = index(parts[part], ":")
        name = substr(parts[part], 1, colon - 1)
        gsub(/ /, "", name)
        value[name] = substr(parts[part], colon + 1)
        gsub(/ /, "", value[name])
    }
}

function as_attributes(text,    count, parts, part, colon, name, is, all) {
    count = split(text, parts, ";")
    for (part = 1; part <= count; part++) {
        colon = index(parts[part], ":")
        name = substr(parts[part], 1, colon - 1)
        gsub(/ /, "", name)
        is = substr(parts[part], colon + 1)
        gsub(/^ +| +$/, "", is)
        if (is ~ /^var\(/) is = value[substr(is, 5, length(is) - 5)]
        if (name ~ /^(fill|stroke|stroke-.*|color|opacity|font-weight)$/)
            all = all (all ? " " : "") name "=\"" is "\""
    }
    return all
}

# An element's attributes stand after its class.
function coloured(line,    at, done, class, end) {
    while ((at = index(line, "class=\""))) {
        end = at + 7 + index(substr(line, at + 7), "\"")
        class = substr(line, at + 7, end - at - 8)
        done = done substr(line, 1, end - 1) (attributes[class] ? " " attributes[class] : "")
        line = substr(line, end)
    }
    return done line
}
