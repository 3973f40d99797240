//! `COMMAND`: the table of commands, for clients that read it.

use crate::resp::command_list::{COMMANDS, SUBCOMMANDS};
use crate::resp::command_spec::{Flags, Keys, Spec};
use crate::resp::command_table::find;
use crate::resp::error_texts as texts;
use crate::resp::glob::Pattern;
use crate::resp::reply::{self, RespVersion};

use super::call::Call;

/// The fields of an entry.
const ENTRY_FIELDS: usize = 10;

impl Call<'_, '_> {
    pub(super) fn command(&mut self) {
        let protocol = self.protocol;
        if self.arguments.len() == 1 {
            return self.command_info(&[]);
        }
        match self.subcommand() {
            None => {}
            Some("count") => self.count(COMMANDS.len()),
            Some("info" | "docs") if self.repeats_names() => {
                self.error("ERR more names than there are commands");
            }
            Some("info") => self.command_info(&self.arguments[2..]),
            Some("docs") => {
                let names = &self.arguments[2..];
                let specs: Vec<&Spec> = match names {
                    [] => COMMANDS.iter().collect(),
                    names => names.iter().filter_map(|name| find(name)).collect(),
                };
                protocol.push_map(self.out(), specs.len());
                for spec in specs {
                    self.bulk(spec.name.as_bytes());
                    self.text_map(&[
                        ("summary", spec.summary.to_owned()),
                        ("group", spec.group.to_owned()),
                    ]);
                }
            }
            Some("list") => self.command_list(),
            Some("getkeys") => self.command_getkeys(),
            Some(_) => self.help(),
        }
    }

    /// Whether names of commands repeat, so that the answer would be much larger than the request.
    fn repeats_names(&self) -> bool {
        let known = self.arguments[2..].iter().filter_map(|name| find(name));
        known.count() > COMMANDS.len()
    }

    /// Entries of these commands, or of all. An unknown name has none.
    fn command_info(&mut self, names: &[&[u8]]) {
        let specs: Vec<Option<&Spec>> = match names {
            [] => COMMANDS.iter().map(Some).collect(),
            names => names.iter().map(|name| find(name)).collect(),
        };
        let protocol = self.protocol;
        let out = self.out();
        reply::push_array(out, specs.len());
        for spec in specs {
            match spec {
                Some(spec) => push_entry(spec, protocol, out),
                None => protocol.push_nil(out),
            }
        }
    }

    /// `COMMAND LIST [FILTERBY MODULE m | ACLCAT c | PATTERN p]`.
    fn command_list(&mut self) {
        let is_listed: Box<dyn Fn(&Spec) -> bool> = match self.arguments[2..] {
            [] => Box::new(|_| true),
            [word, kind, value] if word.eq_ignore_ascii_case(b"filterby") => {
                match kind.to_ascii_lowercase().as_slice() {
                    b"module" => Box::new(|_| false),
                    b"aclcat" => Box::new(move |spec| {
                        let is_named =
                            |name: &String| name.as_bytes()[1..].eq_ignore_ascii_case(value);
                        categories(spec).iter().any(is_named)
                    }),
                    b"pattern" => {
                        let pattern = Pattern::of_any_case(value);
                        Box::new(move |spec| {
                            let pattern = pattern.as_ref();
                            pattern.is_some_and(|pattern| pattern.matches(spec.name.as_bytes()))
                        })
                    }
                    _ => return self.error(texts::SYNTAX),
                }
            }
            _ => return self.error(texts::SYNTAX),
        };
        let names: Vec<&str> = COMMANDS
            .iter()
            .filter(|spec| is_listed(spec))
            .map(|spec| spec.name)
            .collect();
        self.array(names.len());
        names.iter().for_each(|name| self.bulk(name.as_bytes()));
    }

    /// `COMMAND GETKEYS command argument …`.
    fn command_getkeys(&mut self) {
        let command = &self.arguments[2..];
        let keys = match find(command[0]) {
            None => return self.error("ERR Invalid command specified"),
            Some(spec) if !spec.takes(command.len()) => {
                return self.error("ERR Invalid number of arguments specified for command");
            }
            Some(spec) => spec.keys_of(command),
        };
        if keys.is_empty() {
            return self.error("ERR The command has no key arguments");
        }
        self.array(keys.len());
        keys.iter().for_each(|key| self.bulk(key));
    }
}

/// The categories of Redis' access control that follow from what is known.
fn categories(spec: &Spec) -> Vec<String> {
    let mut names = vec![format!("@{}", spec.group)];
    for (flag, name) in [
        (Flags::WRITE, "@write"),
        (Flags::READ, "@read"),
        (Flags::ADMIN, "@admin"),
    ] {
        if spec.flags.has(flag) {
            names.push(name.to_owned());
        }
    }
    names.push(
        if spec.flags.has(Flags::FAST) {
            "@fast"
        } else {
            "@slow"
        }
        .to_owned(),
    );
    names
}

fn push_entry(spec: &Spec, protocol: RespVersion, out: &mut Vec<u8>) {
    let names = |out: &mut Vec<u8>, names: &[String]| {
        protocol.push_set(out, names.len());
        names.iter().for_each(|name| reply::push_simple(out, name));
    };
    reply::push_array(out, ENTRY_FIELDS);
    reply::push_bulk(out, spec.name.as_bytes());
    reply::push_integer(out, spec.arity);
    let flags: Vec<String> = spec
        .flags
        .names()
        .iter()
        .map(|&name| name.to_owned())
        .collect();
    names(out, &flags);
    let (first, last, step) = match spec.keys {
        Keys::At(first, last, step) => (first, last, step),
        Keys::None | Keys::Counted | Keys::CountedPairs => (0, 0, 0),
    };
    for number in [first, last, step] {
        reply::push_integer(out, number);
    }
    names(out, &categories(spec));
    // Tips and key specifications are for clients of clusters.
    reply::push_array(out, 0);
    reply::push_array(out, 0);
    let subcommands: Vec<_> = SUBCOMMANDS
        .iter()
        .filter(|one| one.of == spec.command)
        .collect();
    reply::push_array(out, subcommands.len());
    for one in subcommands {
        reply::push_array(out, ENTRY_FIELDS);
        reply::push_bulk(out, format!("{}|{}", spec.name, one.name).as_bytes());
        reply::push_integer(out, one.arity);
        names(out, &flags);
        for number in [0, 0, 0] {
            reply::push_integer(out, number);
        }
        names(out, &categories(spec));
        for _ in 0..3 {
            reply::push_array(out, 0);
        }
    }
}
