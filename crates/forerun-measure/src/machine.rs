//! Describes the machine that produced a result.

use forerun_core::arch;

/// The CPU, cores, instruction set and huge-page setting, each as a name and a text.
pub fn facts() -> Vec<(String, String)> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let cores = match cores {
        1 => "1 core".to_owned(),
        n => format!("{n} cores"),
    };
    let mut facts = vec![
        ("CPU".to_owned(), format!("{}, {cores}", cpu_model())),
        (
            "system".to_owned(),
            format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
        ),
        ("instruction set".to_owned(), arch::isa_choice().to_string()),
    ];
    if let Some(setting) = huge_page_setting() {
        facts.push(("transparent huge pages".to_owned(), setting));
    }
    facts
}

/// A warning if `FORERUN_ISA` requests an instruction set that this machine does not have.
pub fn isa_warning() -> Option<String> {
    let choice = arch::isa_choice();
    choice
        .is_refused()
        .then(|| format!("warning: instruction set in use: {choice}"))
}

fn cpu_model() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = info.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == "model name").then(|| value.trim().to_owned())
    });
    name.unwrap_or_else(|| std::env::consts::ARCH.to_owned())
}

/// The setting of the kernel in brackets: `always [madvise] never`.
fn huge_page_setting() -> Option<String> {
    let text = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").ok()?;
    let (_, rest) = text.split_once('[')?;
    Some(rest.split_once(']')?.0.to_owned())
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_fact_says_something() {
        let facts = super::facts();
        assert!(facts.len() >= 3);
        for (name, text) in facts {
            assert!(!name.is_empty() && !text.trim().is_empty(), "{name}");
        }
    }
}
