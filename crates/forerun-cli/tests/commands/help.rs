//! The help texts: every subcommand shows an example, and the command line accepts every example.

use crate::testing;

use testing::Workspace;

const COMMANDS: [&str; 21] = [
    "demo",
    "load",
    "put",
    "delete",
    "get",
    "multiget",
    "scan",
    "stats",
    "check",
    "compact",
    "checkpoint",
    "backup",
    "restore",
    "dump",
    "replay",
    "serve",
    "memcached",
    "top",
    "warm",
    "completions",
    "man",
];

#[test]
fn help_shows_examples_and_exit_codes() {
    let workspace = Workspace::new();
    let help = workspace.succeeds(&["--help"]);
    for command in COMMANDS {
        assert!(
            help.contains(&format!("\n  {command} ")),
            "{command} is missing: {help}"
        );
        let own = workspace.succeeds(&[command, "--help"]);
        assert!(
            own.contains("Example") && own.contains(&format!("  forerun {command}")),
            "{command}: {own}"
        );
    }
    assert!(
        help.contains("Examples:") && help.contains("Exit codes:\n  0  success"),
        "{help}"
    );
    assert!(workspace.succeeds(&["--version"]).starts_with("forerun 0."));
}

/// Each example must parse with `--help` appended. An option that does not exist is an error before
/// the help.
#[test]
fn every_example_uses_options_that_exist() {
    let workspace = Workspace::new();
    let mut examples = 0;
    for command in COMMANDS {
        let help = workspace.succeeds(&[command, "--help"]);
        for line in help.lines().filter(|line| line.starts_with("  ")) {
            // The pipe's left side is another program. Remarks follow after several spaces.
            let Some(at) = line.find(&format!("forerun {command}")) else {
                continue;
            };
            let line = line[at..].split("   ").next().unwrap_or_default();
            // Remove quotes as a shell does, and the redirection.
            let words = line.split_whitespace().map(|word| word.trim_matches('\''));
            let words = words.take_while(|word| !word.starts_with('>'));
            let mut args: Vec<&str> = words.skip(1).collect();
            args.push("--help");
            let ran = workspace.run(&args);
            assert_eq!(ran.code, 0, "{line}: {}", ran.stderr);
            examples += 1;
        }
    }
    assert!(examples >= COMMANDS.len(), "{examples}");
}

#[test]
fn a_wrong_command_line_ends_with_2() {
    let workspace = Workspace::new();
    for args in [
        &["lode"][..],
        &[],
        &["load", "db"],
        &["get", "db"],
        &["multiget", "db", "--keys", "x", "--batch", "0"],
        &["load", "db", "t.csv", "--key", "id", "--format", "magic"],
        &["get", "db", "k", "--memory-limit", "lots"],
        &["get", "db", "xyz", "--hex"],
        &["load", "db", "table.dat", "--key", "id"],
        &["replay", "db", "t", "--batch", "8,x"],
        &["put", "db", "key"],
        &["check"],
        &["checkpoint", "db"],
        &["backup", "backups"],
        &["backup", "db", "backups", "--list"],
        &["backup", "db", "backups", "--keep", "0"],
        &["restore", "backups"],
        &["dump", "db", "--page", "0"],
    ] {
        let ran = workspace.run(args);
        assert_eq!(ran.code, 2, "{args:?}: {ran:?}");
        assert!(
            !ran.stderr.is_empty() && ran.stdout.is_empty(),
            "{args:?}: {ran:?}"
        );
    }
}
