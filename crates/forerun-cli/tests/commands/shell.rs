//! Shell support: completions and manual pages.

use crate::testing;

use std::process::Command;

use testing::Workspace;

/// The words that bash offers for a command line whose last word is being completed.
fn bash_completes(workspace: &Workspace, words: &[&str]) -> Vec<String> {
    let script = r#"
        source completion.bash
        COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
        previous=forerun
        [ $# -gt 2 ] && previous=${COMP_WORDS[COMP_CWORD - 1]}
        _forerun forerun "${COMP_WORDS[COMP_CWORD]}" "$previous"
        printf '%s\n' "${COMPREPLY[@]}"
    "#;
    let output = Command::new("bash")
        .args(["--norc", "-c", script, "bash"])
        .args(words)
        .current_dir(workspace.path(""))
        .output()
        .expect("bash can be started");
    assert!(output.status.success(), "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    text.lines().map(str::to_owned).collect()
}

#[test]
fn bash_completes_subcommands_options_and_their_values() {
    let workspace = Workspace::new();
    workspace.file(
        "completion.bash",
        workspace.succeeds(&["completions", "bash"]).as_bytes(),
    );
    assert_eq!(
        bash_completes(&workspace, &["forerun", "che"]),
        ["check", "checkpoint"]
    );
    assert_eq!(
        bash_completes(&workspace, &["forerun", "serve", "--snap"]),
        [
            "--snapshot",
            "--snapshot-ignore-bad",
            "--snapshot-max-age",
            "--snapshot-rate",
            "--snapshot-interval"
        ]
    );
    assert_eq!(
        bash_completes(&workspace, &["forerun", "serve", "--log-format", ""]),
        ["text", "json"]
    );
    assert_eq!(
        bash_completes(&workspace, &["forerun", "completions", "z"]),
        ["zsh"]
    );
}

#[test]
fn every_shell_has_a_script() {
    let workspace = Workspace::new();
    for (shell, sign) in [
        ("bash", "complete -F _forerun"),
        ("zsh", "#compdef forerun"),
        ("fish", "complete -c forerun"),
        ("powershell", "Register-ArgumentCompleter"),
    ] {
        let script = workspace.succeeds(&["completions", shell]);
        assert!(script.contains(sign), "{shell}");
        assert!(script.contains("checkpoint"), "{shell}");
    }
    assert_eq!(workspace.run(&["completions", "cmd"]).code, 2);
}

#[test]
fn every_command_has_a_manual_page() {
    let workspace = Workspace::new();
    workspace.succeeds(&["man", "--out", "new/man1"]);
    let page = |name: &str| {
        let path = workspace.path("new/man1").join(name);
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{name}: {error}"))
    };
    let main = page("forerun.1");
    assert!(
        main.starts_with(".TH FORERUN 1 \"\" \"forerun 0."),
        "{main}"
    );
    assert!(main.contains("\n.SH \"EXIT CODES\"\n.nf\n0  success\n"));
    // Every subcommand on the main page has a page, and there are no other pages.
    let listed = main
        .lines()
        .filter_map(|line| line.strip_suffix("(1)"))
        .map(|name| name.replace('\\', "") + ".1");
    let mut expected: Vec<String> = listed.collect();
    assert!(
        expected.len() > 10 && expected.contains(&"forerun-serve.1".to_owned()),
        "{expected:?}"
    );
    for name in &expected {
        let page = page(name);
        assert!(page.contains("\n.SH EXAMPLES\n.nf\nforerun "), "{name}");
        assert!(page.contains("\n.SH \"SEE ALSO\"\nforerun(1)\n"), "{name}");
    }
    expected.push("forerun.1".to_owned());
    let written = std::fs::read_dir(workspace.path("new/man1")).expect("a directory");
    for entry in written {
        let name = entry.expect("an entry").file_name();
        let name = name.to_str().expect("UTF-8");
        assert!(expected.iter().any(|page| page == name), "{name}");
    }
}
