//! The command line accepts every example in the help texts.

mod testing;

use testing::Workspace;

/// The examples of a help text, without the remarks after them. Long ones are wrapped.
fn examples_of(help: &str) -> Vec<String> {
    let mut examples: Vec<String> = Vec::new();
    let mut open = false;
    for line in help.lines() {
        let begins = line.trim_start_matches("Example: ").trim_start();
        if begins.starts_with("forerun-bench ") {
            // Remarks follow several spaces.
            examples.push(begins.split("   ").next().unwrap_or_default().to_owned());
            open = !begins.contains("   ");
        } else if open && !line.is_empty() {
            let example = examples.last_mut().expect("one is open");
            example.push(' ');
            example.push_str(line.trim_start());
        } else {
            open = false;
        }
    }
    examples
}

/// Each example, with `--help` appended, must print the help text. An unknown option is an error
/// before that.
#[test]
fn every_example_uses_options_that_exist() {
    let workspace = Workspace::new();
    let top = workspace.succeeds(&["--help"]);
    let commands = top
        .split("Commands:\n")
        .nth(1)
        .expect("commands are listed");
    let commands = commands.lines().take_while(|line| !line.is_empty());
    let names: Vec<&str> = commands
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| *name != "help")
        .collect();
    assert!(names.len() >= 12, "{names:?}");
    let mut helps = vec![top.clone()];
    helps.extend(
        names
            .iter()
            .map(|name| workspace.succeeds(&[name, "--help"])),
    );
    let mut examples = 0;
    for example in helps.iter().flat_map(|help| examples_of(help)) {
        let mut args: Vec<&str> = example.split_whitespace().skip(1).collect();
        args.push("--help");
        workspace.succeeds(&args);
        examples += 1;
    }
    assert!(examples >= 2 * names.len(), "{examples}");
}

#[test]
fn a_wrong_command_line_ends_with_2() {
    let workspace = Workspace::new();
    for args in [
        &["lode"][..],
        &[],
        &["stress", "--cycles", "3"],
        &["roofline", "--threads", "none"],
        &["table", "--rows"],
    ] {
        let ran = workspace.run(args);
        assert_eq!(ran.code, 2, "{args:?}: {ran:?}");
        assert!(!ran.stderr.is_empty() && ran.stdout.is_empty(), "{args:?}");
    }
}
