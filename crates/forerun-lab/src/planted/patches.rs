//! The patches: one file for each known defect.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};

/// Where the patches are, from the root of the sources.
pub const PLACE: &str = "crates/forerun-lab/planted";

/// What begins a line that names what must find the defect.
const FOUND_BY: &str = "Found by: ";

/// A known defect.
#[derive(Clone, Debug)]
pub struct Patch {
    pub name: String,
    pub path: PathBuf,
    /// What it does, in one sentence.
    pub description: String,
    pub finders: Vec<Finder>,
    /// The files that it changes, from the root of the sources.
    pub files: Vec<String>,
}

/// What must find a defect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finder {
    /// `forerun-lab sim`.
    Store,
    /// `forerun-lab server-sim`.
    Server,
    Test(Test),
}

/// A test of a crate that fails with the defect.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Test {
    pub package: String,
    pub file: String,
    pub name: String,
}

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.package, self.file, self.name)
    }
}

impl Finder {
    fn parse(text: &str) -> Option<Finder> {
        match text.split(' ').collect::<Vec<_>>()[..] {
            ["sim"] => Some(Finder::Store),
            ["server-sim"] => Some(Finder::Server),
            [package, file, name] => Some(Finder::Test(Test {
                package: package.to_owned(),
                file: file.to_owned(),
                name: name.to_owned(),
            })),
            _ => None,
        }
    }
}

impl Patch {
    /// All patches of the sources at `root`, by name.
    ///
    /// # Errors
    /// One cannot be read or is not as README.md beside them says.
    pub fn all(root: &Path) -> anyhow::Result<Vec<Patch>> {
        let place = root.join(PLACE);
        let entries = fs::read_dir(&place).with_context(|| format!("read {}", place.display()))?;
        let mut paths = Vec::new();
        for entry in entries {
            let path = entry?.path();
            if path
                .extension()
                .is_some_and(|extension| extension == "patch")
            {
                paths.push(path);
            }
        }
        paths.sort();
        paths.iter().map(|path| Patch::read(path)).collect()
    }

    /// Those of the patches that have these names; all of them if no names are given.
    ///
    /// # Errors
    /// A name is unknown.
    pub fn named(all: &[Patch], names: &[String]) -> anyhow::Result<Vec<Patch>> {
        if names.is_empty() {
            return Ok(all.to_vec());
        }
        let find = |name: &String| {
            let found = all.iter().find(|patch| patch.name == *name);
            found.cloned().with_context(|| {
                format!("no defect is called {name}: see forerun-lab planted list")
            })
        };
        names.iter().map(find).collect()
    }

    /// Reads the patch of a file.
    ///
    /// # Errors
    /// It cannot be read or is not as README.md beside it says.
    pub fn read(path: &Path) -> anyhow::Result<Patch> {
        let text = fs::read_to_string(path);
        let text = text.with_context(|| format!("read {}", path.display()))?;
        Patch::parse(path, &text).with_context(|| format!("{}", path.display()))
    }

    /// The patch of a file with this text.
    pub fn parse(path: &Path, text: &str) -> anyhow::Result<Patch> {
        let name = path.file_stem().unwrap_or_default();
        let name = name.to_string_lossy().into_owned();
        let header = header(text);
        let (description, finders) = header
            .split_once("\n\n")
            .context("a description and a blank line must precede the lines \"Found by: \"")?;
        let description = description.replace('\n', " ");
        ensure!(
            description.ends_with('.'),
            "the description must be a sentence"
        );
        let mut parsed = Vec::new();
        for line in finders.lines().filter(|line| !line.is_empty()) {
            let finder = line.strip_prefix(FOUND_BY).and_then(Finder::parse);
            parsed.push(finder.with_context(|| {
                format!(
                    "{line:?} is none of \"Found by: sim\", \"Found by: server-sim\" and \
                     \"Found by: CRATE TESTS NAME\""
                )
            })?);
        }
        ensure!(!parsed.is_empty(), "it must say what finds the defect");
        let files: Vec<String> = text
            .lines()
            .filter_map(|line| line.strip_prefix("+++ b/"))
            .map(str::to_owned)
            .collect();
        ensure!(!files.is_empty(), "it changes no file");
        for file in &files {
            let is_product = ["crates/forerun-db/src/", "crates/forerun-server/src/"]
                .iter()
                .any(|place| file.starts_with(place));
            ensure!(is_product, "it changes {file}, which is not in the product");
        }
        let asks = format!("forerun_core::planted::is(\"{name}\"");
        let asked = text.lines().filter(|line| line.starts_with('+'));
        let asked: String = asked.map(|line| line[1..].trim()).collect();
        ensure!(asked.contains(&asks), "no line that it adds has {asks}");
        Ok(Patch {
            name,
            path: path.to_owned(),
            description,
            finders: parsed,
            files,
        })
    }

    /// Its path from the root of the sources.
    pub fn place(&self) -> String {
        format!("{PLACE}/{}.patch", self.name)
    }
}

/// What precedes the changes in the text of a patch.
pub fn header(text: &str) -> &str {
    match text.find("diff --git ") {
        Some(end) => &text[..end],
        None => text,
    }
}

/// The header of a new patch.
pub fn new_header(description: &str, finders: &[String]) -> String {
    let finders: String = finders
        .iter()
        .map(|finder| format!("{FOUND_BY}{finder}\n"))
        .collect();
    format!("{description}\n\n{finders}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHANGE: &str = "diff --git a/crates/forerun-db/src/x.rs b/crates/forerun-db/src/x.rs\n\
        --- a/crates/forerun-db/src/x.rs\n\
        +++ b/crates/forerun-db/src/x.rs\n\
        @@ -1 +1,2 @@\n\
        +if forerun_core::planted::is(\"a-b\") {}\n";

    fn parse(header: &str) -> Result<Patch, String> {
        let parsed = Patch::parse(Path::new("a-b.patch"), &format!("{header}{CHANGE}"));
        parsed.map_err(|error| error.to_string())
    }

    #[test]
    fn a_patch_says_what_it_does_and_what_finds_it() {
        let header = "It loses\nall.\n\nFound by: sim\nFound by: forerun-db guarantees log::x\n\n";
        let patch = parse(header).unwrap();
        assert_eq!(patch.description, "It loses all.");
        assert_eq!(patch.files, ["crates/forerun-db/src/x.rs"]);
        let [Finder::Store, Finder::Test(test)] = &patch.finders[..] else {
            panic!("{:?}", patch.finders);
        };
        assert_eq!(test.name, "log::x");
    }

    #[test]
    fn a_patch_without_a_sentence_or_a_finder_is_refused() {
        for (header, wrong) in [
            ("It loses all\n\nFound by: sim\n\n", "a sentence"),
            ("It loses all.\n\n", "what finds"),
            ("It loses all.\n\nFound by: luck\n\n", "luck"),
            ("It loses all.\n", "Found by"),
        ] {
            let error = parse(header).unwrap_err();
            assert!(error.contains(wrong), "{error}");
        }
    }

    #[test]
    fn a_patch_asks_for_its_own_name() {
        let text = format!("It loses all.\n\nFound by: sim\n\n{CHANGE}");
        let error = Patch::parse(Path::new("other.patch"), &text).unwrap_err();
        assert!(error.to_string().contains("is(\"other\""), "{error}");
    }
}
