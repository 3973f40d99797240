//! Memcached's options as they stand on a command line or in `/etc/memcached.conf`, in the forms
//! that `getopt_long` accepts.
//!
//! ```text
//!   -m 64    -m64    -vvd    --memory-limit 64    --memory-limit=64    --memory 64
//! ```

use crate::exit::UsageError;

/// An option of memcached: its letter, its long name, and whether a value follows.
struct Known {
    letter: char,
    name: &'static str,
    takes_value: bool,
}

const fn flag(letter: char, name: &'static str) -> Known {
    Known {
        letter,
        name,
        takes_value: false,
    }
}

const fn value(letter: char, name: &'static str) -> Known {
    Known {
        letter,
        name,
        takes_value: true,
    }
}

/// The options of memcached 1.6. `-D` has no long name.
const KNOWN: [Known; 38] = [
    value('p', "port"),
    value('U', "udp-port"),
    value('s', "unix-socket"),
    value('a', "unix-mask"),
    flag('A', "enable-shutdown"),
    value('l', "listen"),
    flag('d', "daemon"),
    flag('r', "enable-coredumps"),
    value('u', "user"),
    value('m', "memory-limit"),
    flag('M', "disable-evictions"),
    value('c', "conn-limit"),
    flag('k', "lock-memory"),
    flag('v', "verbose"),
    flag('h', "help"),
    flag('i', "license"),
    flag('V', "version"),
    value('P', "pidfile"),
    value('f', "slab-growth-factor"),
    value('n', "slab-min-size"),
    flag('L', "enable-largepages"),
    value('D', ""),
    value('t', "threads"),
    value('R', "max-reqs-per-event"),
    flag('C', "disable-cas"),
    value('b', "listen-backlog"),
    value('B', "protocol"),
    value('I', "max-item-size"),
    flag('S', "enable-sasl"),
    flag('F', "disable-flush-all"),
    flag('X', "disable-dumping"),
    flag('W', "disable-watch"),
    value('Y', "auth-file"),
    value('e', "memory-file"),
    flag('Z', "enable-ssl"),
    value('o', "extended"),
    // The name in 1.6.18, and in later versions.
    value('N', "napi_ids"),
    value('N', "napi-ids"),
];

/// An option that was given: its letter, and its value, which is empty for a flag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Given {
    pub letter: char,
    pub value: String,
}

/// Parses options.
///
/// # Errors
/// [`UsageError`] for an unknown or ambiguous option, a missing or unexpected value, or an argument
/// that is not an option.
pub(super) fn parse(args: impl IntoIterator<Item = String>) -> Result<Vec<Given>, UsageError> {
    let mut args = args.into_iter();
    let mut given = Vec::new();
    while let Some(arg) = args.next() {
        if arg == "--" {
            match args.next() {
                None => break,
                Some(arg) => return Err(UsageError(format!("unexpected argument {arg:?}"))),
            }
        }
        if let Some(long) = arg.strip_prefix("--") {
            let (name, attached) = match long.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (long, None),
            };
            let known = find_long(name)?;
            let value = match (known.takes_value, attached) {
                (true, Some(value)) => value,
                (true, None) => next_value(&mut args, &arg)?,
                (false, None) => String::new(),
                (false, Some(_)) => {
                    return Err(UsageError(format!("--{name} takes no value")));
                }
            };
            let letter = known.letter;
            given.push(Given { letter, value });
        } else if let Some(letters) = arg.strip_prefix('-').filter(|rest| !rest.is_empty()) {
            for (at, letter) in letters.char_indices() {
                let known = KNOWN.iter().find(|known| known.letter == letter);
                let known = known.ok_or_else(|| UsageError(format!("unknown option -{letter}")))?;
                if !known.takes_value {
                    let value = String::new();
                    given.push(Given { letter, value });
                    continue;
                }
                let value = match &letters[at + letter.len_utf8()..] {
                    "" => next_value(&mut args, &format!("-{letter}"))?,
                    attached => attached.to_owned(),
                };
                given.push(Given { letter, value });
                break;
            }
        } else {
            return Err(UsageError(format!("unexpected argument {arg:?}")));
        }
    }
    Ok(given)
}

fn next_value(args: &mut impl Iterator<Item = String>, option: &str) -> Result<String, UsageError> {
    args.next()
        .ok_or_else(|| UsageError(format!("{option} needs a value")))
}

/// The option with this long name, or the only one that begins like it.
fn find_long(name: &str) -> Result<&'static Known, UsageError> {
    if let Some(known) = KNOWN
        .iter()
        .find(|known| !name.is_empty() && known.name == name)
    {
        return Ok(known);
    }
    let mut begun = KNOWN
        .iter()
        .filter(|known| !name.is_empty() && known.name.starts_with(name));
    match (begun.next(), begun.next()) {
        (Some(known), None) => Ok(known),
        (Some(known), Some(other)) if known.letter == other.letter => Ok(known),
        (Some(one), Some(other)) => Err(UsageError(format!(
            "--{name} is ambiguous: --{} or --{}",
            one.name, other.name
        ))),
        (None, _) => Err(UsageError(format!("unknown option --{name}"))),
    }
}

/// The options in a configuration file like Debian's `/etc/memcached.conf`: one or several on a
/// line, with comments after `#`. Lines that do not begin with an option are directives for
/// Debian's start script (`logfile`, `verbose`) and are skipped. So is a byte order mark.
pub(super) fn words_of_file(text: &str) -> Vec<String> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    text.lines()
        .map(|line| line.split('#').next().unwrap_or_default().trim())
        .filter(|line| line.starts_with('-'))
        .flat_map(str::split_whitespace)
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(args: &[&str]) -> Result<Vec<(char, String)>, String> {
        parse(args.iter().map(|&arg| arg.to_owned()))
            .map(|given| {
                given
                    .into_iter()
                    .map(|one| (one.letter, one.value))
                    .collect()
            })
            .map_err(|error| error.0)
    }

    #[test]
    fn values_are_attached_or_follow_and_flags_are_combined() {
        let expected = Ok(vec![('m', "64".to_owned())]);
        for args in [
            &["-m", "64"][..],
            &["-m64"],
            &["--memory-limit", "64"],
            &["--memory-limit=64"],
            &["--memory-l=64"],
        ] {
            assert_eq!(read(args), expected, "{args:?}");
        }
        for name in ["--napi_ids=2", "--napi-ids=2", "--napi=2"] {
            assert_eq!(read(&[name]), Ok(vec![('N', "2".to_owned())]), "{name}");
        }
        let letters = |args: &[&str]| -> String {
            let given = read(args).expect("they are options");
            given.iter().map(|(letter, _)| *letter).collect()
        };
        assert_eq!(letters(&["-vvdm64", "-M", "--"]), "vvdmM");
        assert_eq!(read(&["-vp", "7"]).unwrap()[1], ('p', "7".to_owned()));
        assert_eq!(read(&["-p", "-1"]).unwrap(), [('p', "-1".to_owned())]);
    }

    #[test]
    fn what_is_no_option_is_named() {
        for (args, text) in [
            (&["-q"][..], "-q"),
            (&["--nothing"], "--nothing"),
            (&["--memory"], "--memory-limit or --memory-file"),
            (&["-m"], "-m needs a value"),
            (&["--port"], "--port needs a value"),
            (&["--daemon=1"], "takes no value"),
            (&["-d", "word"], "\"word\""),
            (&["--", "word"], "\"word\""),
            (&["-"], "\"-\""),
            (&["--=1"], "unknown option"),
        ] {
            let error = read(args).expect_err("it is wrong");
            assert!(error.contains(text), "{args:?}: {error}");
        }
    }

    #[test]
    fn a_file_has_options_comments_and_directives() {
        let text = "# Run as a daemon.\n-d\n\nlogfile /var/log/x.log\n# -vv\n-m 64 # MiB\n  \
                    -l 127.0.0.1,::1\n";
        assert_eq!(
            words_of_file(text),
            ["-d", "-m", "64", "-l", "127.0.0.1,::1"]
        );
        assert_eq!(words_of_file("\u{feff}-m 64\n-d\n"), ["-m", "64", "-d"]);
    }
}
