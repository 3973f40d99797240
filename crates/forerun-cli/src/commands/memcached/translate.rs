//! Memcached's options as options of `forerun serve`.
//!
//! An option is passed on, ignored with a warning, or refused. Refused are options without which
//! clients would get another service than was asked for: SASL's own users, external storage, the
//! proxy. UDP is only ignored: clients use it next to TCP, and old configurations
//! enable it although nobody uses it.

use crate::exit::UsageError;

use super::options::Given;

/// What a command line of memcached asks for.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Translated {
    /// The options of `forerun serve`.
    pub serve: Vec<String>,
    /// Options without a meaning here, as they were given.
    pub ignored: Vec<String>,
    /// Run in the background.
    pub daemon: bool,
    /// Raise the limit on core dumps.
    pub core_dumps: bool,
    /// Become this user, if the process runs as root.
    pub user: Option<String>,
}

/// Extended options (`-o`) about slabs, LRUs, the hash table and buffers, which do not exist here,
/// and about TLS details that rustls decides. `no_` may precede each.
const IGNORED_EXTENDED: [&str; 36] = [
    "maxconns_fast",
    "hashpower",
    "tail_repair_time",
    "hash_algorithm",
    "lru_crawler",
    "lru_crawler_sleep",
    "lru_crawler_tocrawl",
    "lru_maintainer",
    "hot_lru_pct",
    "warm_lru_pct",
    "hot_max_factor",
    "warm_max_factor",
    "temporary_ttl",
    "slab_reassign",
    "slab_automove",
    "slab_automove_ratio",
    "slab_automove_window",
    "slab_automove_freeratio",
    "slab_automove_version",
    "slab_chunk_max",
    "slab_sizes",
    "watcher_logbuf_size",
    "worker_logbuf_size",
    "track_sizes",
    "inline_ascii_resp",
    "hashexpand",
    "modern",
    "drop_privileges",
    "relaxed_privileges",
    "sock_cookie_id",
    "ssl_ciphers",
    "ssl_wbuf_size",
    "ssl_session_cache",
    "ssl_kernel_tls",
    "chunked_items",
    "meta_response_old",
];

/// Translates options. `every_interface` is the address to listen on where none is given.
///
/// # Errors
/// [`UsageError`] names an option that this server cannot fulfil, or a value that is wrong.
pub(super) fn translate(given: &[Given], every_interface: &str) -> Result<Translated, UsageError> {
    let mut to = Translated::default();
    let mut tls = Tls::default();
    let mut crawls = true;
    let mut port = None;
    let mut listens = Vec::new();
    let mut has_unix_socket = false;
    let mut threads = "4".to_owned();
    for Given { letter, value } in given {
        let mut pass = |name: &str| to.serve.push(format!("--{name}={value}"));
        match letter {
            'p' => port = Some(value.clone()),
            'l' => listens.push(value.clone()),
            't' => threads = value.clone(),
            's' => {
                has_unix_socket = true;
                pass("unix-socket");
            }
            'a' => pass("unix-mask"),
            'm' => pass("memory-limit"),
            'c' => pass("conn-limit"),
            'b' => pass("listen-backlog"),
            'I' => pass("max-item-size"),
            'Y' => pass("auth-file"),
            'P' => pass("pid-file"),
            // Memcached starts empty if it cannot use the file.
            'e' => {
                pass("snapshot");
                to.serve.push("--snapshot-ignore-bad".to_owned());
            }
            'M' => to.serve.push("--disable-evictions".to_owned()),
            'A' => to.serve.push("--enable-shutdown".to_owned()),
            'F' => to.serve.push("--disable-flush-all".to_owned()),
            'X' => to.serve.push("--disable-dumping".to_owned()),
            'D' => pass("prefix-delimiter"),
            'W' => to.serve.push("--disable-watch".to_owned()),
            'v' => to.serve.push("--verbose".to_owned()),
            'Z' => tls.enabled = true,
            'd' => to.daemon = true,
            'r' => to.core_dumps = true,
            'u' => to.user = Some(value.clone()),
            'o' => {
                for option in value.split(',').filter(|option| !option.is_empty()) {
                    extended(option, &mut to, &mut tls, &mut crawls)?;
                }
            }
            'U' => match value.trim().parse::<i32>() {
                Ok(0) => {}
                Ok(port) => to.ignored.push(format!("-U {port} (there is no UDP)")),
                Err(_) => return Err(UsageError(format!("-U {value}: not a port"))),
            },
            'S' => {
                return Err(refused(
                    "-S",
                    "SASL's own users; -Y has users for SASL, too",
                ));
            }
            'B' if value == "ascii" => to.serve.push("--no-binary".to_owned()),
            'B' if value == "auto" => {}
            'B' if value == "binary" => {
                to.ignored
                    .push("-B binary (text clients are served, too)".to_owned());
            }
            'B' => return Err(refused("-B", "protocols are ascii, binary and auto")),
            // Internals of memcached's memory, hash table, event loop and logs.
            _ if value.is_empty() => to.ignored.push(format!("-{letter}")),
            _ => to.ignored.push(format!("-{letter} {value}")),
        }
    }
    to.serve.push(format!("--threads={threads}"));
    if !crawls {
        to.serve.push("--no-lru-crawler".to_owned());
    }
    tls.push_to(&mut to.serve)?;
    let port = match port.as_deref() {
        // Memcached: -1 is any free port, and 0 is none.
        Some("-1") => Some("0".to_owned()),
        Some("0") => None,
        Some(port) => Some(port.to_owned()),
        None => Some("11211".to_owned()),
    };
    match port {
        // As in memcached, a unix socket replaces TCP, whatever -l says.
        _ if has_unix_socket => {}
        None => {
            return Err(UsageError(
                "-p 0 without -s: there is nothing to listen on".to_owned(),
            ));
        }
        Some(port) => {
            if listens.is_empty() {
                listens.push(every_interface.to_owned());
            }
            to.serve.push(format!("--port={port}"));
            let listens = listens.iter().map(|one| format!("--listen={one}"));
            to.serve.extend(listens);
        }
    }
    Ok(to)
}

fn refused(option: &str, what: &str) -> UsageError {
    UsageError(format!("{option}: not supported here: {what}"))
}

/// The options of TLS, which memcached spreads over `-Z` and `-o`.
#[derive(Default)]
struct Tls {
    enabled: bool,
    certificate: Option<String>,
    key: Option<String>,
    others: Vec<String>,
}

impl Tls {
    fn push_to(self, serve: &mut Vec<String>) -> Result<(), UsageError> {
        if !self.enabled {
            return Ok(());
        }
        let Some(certificate) = self.certificate else {
            return Err(UsageError(
                "-Z needs the certificate: -o ssl_chain_cert=FILE".to_owned(),
            ));
        };
        // The key may be in the certificate's file.
        let key = self.key.unwrap_or_else(|| certificate.clone());
        serve.push("--enable-ssl".to_owned());
        serve.push(format!("--ssl-chain-cert={certificate}"));
        serve.push(format!("--ssl-key={key}"));
        serve.extend(self.others);
        Ok(())
    }
}

/// One extended option: `name` or `name=value`.
fn extended(
    option: &str,
    to: &mut Translated,
    tls: &mut Tls,
    crawls: &mut bool,
) -> Result<(), UsageError> {
    let (name, value) = match option.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (option, None),
    };
    let needed = || {
        value
            .map(str::to_owned)
            .ok_or_else(|| UsageError(format!("-o {name} needs a value")))
    };
    match name {
        "idle_timeout" => to.serve.push(format!("--idle-timeout={}", needed()?)),
        // In MiB; 0 is memcached's default, no limit. Here the default limit stays.
        "read_buf_mem_limit" | "resp_obj_mem_limit" => match needed()?.as_str() {
            "0" => {}
            mebibytes => to.serve.push(format!("--buffer-limit={mebibytes}")),
        },
        "no_lru_crawler" => *crawls = false,
        "lru_crawler" => *crawls = true,
        "no_modern" => {
            *crawls = false;
            to.ignored.push("-o no_modern".to_owned());
        }
        "ssl_chain_cert" => tls.certificate = Some(needed()?),
        "ssl_key" => tls.key = Some(needed()?),
        "ssl_ca_cert" => tls.others.push(format!("--ssl-ca-cert={}", needed()?)),
        "ssl_verify_mode" => {
            let mode = needed()?;
            tls.others.push(format!("--ssl-verify-mode={mode}"));
        }
        "ssl_min_version" => {
            let version = match needed()?.as_str() {
                "3" | "tlsv1.3" => "tlsv1.3",
                // Nothing below TLS 1.2 is offered.
                "0" | "1" | "2" | "tlsv1.0" | "tlsv1.1" | "tlsv1.2" => "tlsv1.2",
                other => {
                    return Err(UsageError(format!(
                        "-o ssl_min_version={other}: no version"
                    )));
                }
            };
            tls.others.push(format!("--ssl-min-version={version}"));
        }
        "ssl_keyformat" if value == Some("PEM") => {}
        "ssl_keyformat" => return Err(refused("-o ssl_keyformat", "only PEM")),
        name if name.starts_with("ext_") => {
            return Err(refused(&format!("-o {name}"), "external storage"));
        }
        name if name.starts_with("proxy_") => {
            return Err(refused(&format!("-o {name}"), "the proxy"));
        }
        name if IGNORED_EXTENDED.contains(&name.strip_prefix("no_").unwrap_or(name)) => {
            to.ignored.push(format!("-o {option}"));
        }
        _ => return Err(UsageError(format!("-o {option}: unknown option"))),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::options::parse;
    use super::*;

    fn of(line: &str) -> Result<Translated, String> {
        let words = line.split_whitespace().map(str::to_owned);
        let given = parse(words).expect("they are options");
        translate(&given, "0.0.0.0").map_err(|error| error.0)
    }

    #[test]
    fn debians_configuration_is_accepted() {
        let to = of("-d -m 64 -p 11211 -u memcache -l 127.0.0.1 -P /run/memcached.pid").unwrap();
        assert_eq!(
            to.serve,
            [
                "--memory-limit=64",
                "--pid-file=/run/memcached.pid",
                "--threads=4",
                "--port=11211",
                "--listen=127.0.0.1",
            ]
        );
        assert!(to.daemon && to.user.as_deref() == Some("memcache"));
        assert!(to.ignored.is_empty());
    }

    #[test]
    fn addresses_are_memcacheds() {
        let listens = |line: &str| -> Vec<String> {
            let given = of(line).unwrap().serve;
            let is_place = |arg: &String| arg.starts_with("--listen") || arg.starts_with("--port");
            given.into_iter().filter(is_place).collect()
        };
        assert_eq!(listens(""), ["--port=11211", "--listen=0.0.0.0"]);
        assert_eq!(listens("-p -1"), ["--port=0", "--listen=0.0.0.0"]);
        assert_eq!(listens("-s /tmp/s -l 127.0.0.1"), Vec::<String>::new());
        assert_eq!(listens("-s /tmp/s -p 0"), Vec::<String>::new());
        assert!(of("-p 0").unwrap_err().contains("nothing to listen on"));
    }

    #[test]
    fn internals_are_ignored_by_name_and_other_services_are_refused() {
        let to = of("-f 1.1 -L -C -o modern,no_hashexpand,slab_automove=1,hash_algorithm=xxh3");
        assert_eq!(
            to.unwrap().ignored,
            [
                "-f 1.1",
                "-L",
                "-C",
                "-o modern",
                "-o no_hashexpand",
                "-o slab_automove=1",
                "-o hash_algorithm=xxh3",
            ]
        );
        for (line, word) in [
            ("-U udp", "-U udp"),
            ("-S", "SASL"),
            ("-B nothing", "ascii"),
            ("-o ext_path=/x:1G", "external storage"),
            ("-o proxy_config=/x", "proxy"),
            ("-o nothing", "nothing"),
            ("-o idle_timeout", "needs a value"),
            ("-Z", "ssl_chain_cert"),
        ] {
            let error = of(line).unwrap_err();
            assert!(error.contains(word), "{line}: {error}");
        }
        let to = of("-D / -W").unwrap();
        assert_eq!(to.serve[..2], ["--prefix-delimiter=/", "--disable-watch"]);
        let to = of("-U 0 -B ascii").unwrap();
        assert!(to.ignored.is_empty() && to.serve.contains(&"--no-binary".to_owned()));
        let to = of("-B auto").unwrap();
        assert!(to.ignored.is_empty() && !to.serve.contains(&"--no-binary".to_owned()));
        let to = of("-B binary").unwrap();
        assert_eq!(to.ignored, ["-B binary (text clients are served, too)"]);
        assert_eq!(
            of("-U 11211").unwrap().ignored,
            ["-U 11211 (there is no UDP)"]
        );
    }

    #[test]
    fn extended_options_become_options_of_serve() {
        let to = of(
            "-Z -o ssl_chain_cert=c.pem,ssl_min_version=3,idle_timeout=9,read_buf_mem_limit=32 -o \
             no_lru_crawler",
        );
        assert_eq!(
            to.unwrap().serve,
            [
                "--idle-timeout=9",
                "--buffer-limit=32",
                "--threads=4",
                "--no-lru-crawler",
                "--enable-ssl",
                "--ssl-chain-cert=c.pem",
                "--ssl-key=c.pem",
                "--ssl-min-version=tlsv1.3",
                "--port=11211",
                "--listen=0.0.0.0",
            ]
        );
    }
}
