//! Counts the instructions and the cache lines of another process's lookups, one instruction at a
//! time.
//!
//! ```text
//!   stop ── step: registers ─> decode ─> addresses of its operands ─> lines ── step … ── stop
//! ```
//!
//! The other process is this program's `traced-lookups`. Nothing in it is changed, so what is
//! counted is the code that the other benches time.

use super::counted_lookups::{CountCase, Lookups, traced_line};
use anyhow::{Context, Result, bail, ensure};
use iced_x86::{Decoder, DecoderOptions, InstructionInfoFactory, OpAccess, Register, UsedMemory};
use nix::sys::ptrace;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::process::{Child, Command, Stdio};

/// What a key costs.
#[derive(Clone, Copy, Debug)]
pub(super) struct StepCounts {
    pub(super) instructions: f64,
    pub(super) lines: f64,
}

/// The maximum steps of a case: a minute or so.
const STEPS_MAX: u64 = 10_000_000;

/// The longest instruction.
const INSTRUCTION_BYTES_MAX: usize = 15;

const LINE_BYTES: u64 = forerun_core::CACHE_LINE_BYTES as u64;

/// Counts each case's lookups.
///
/// # Errors
/// The system does not allow tracing, or the traced process fails.
pub(super) fn count(lookups: &Lookups, cases: &[CountCase]) -> Result<Vec<StepCounts>> {
    let mut traced = Traced::start(&traced_line(lookups, cases))?;
    let stopping = traced.section()?;
    let keys = lookups.stepped as f64;
    let mut counts = Vec::new();
    for (strategy, batch) in cases {
        let section = traced.section();
        let section = section.with_context(|| format!("{strategy} at batch {batch}"))?;
        let instructions = section.steps.saturating_sub(stopping.steps);
        counts.push(StepCounts {
            instructions: instructions as f64 / keys,
            lines: section.lines as f64 / keys,
        });
    }
    Ok(counts)
}

/// What happened between two stops.
struct Section {
    steps: u64,
    lines: usize,
}

/// The traced process; it ends when dropped.
struct Traced {
    child: Child,
    pid: Pid,
    memory: File,
    /// The memory operands of each instruction met so far, by its address.
    decoded: HashMap<u64, Vec<UsedMemory>>,
    infos: InstructionInfoFactory,
}

impl Drop for Traced {
    fn drop(&mut self) {
        // It may have ended already; there is nothing else to do then.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Traced {
    /// Starts the process and attaches to it before its first stop.
    fn start(line: &[String]) -> Result<Traced> {
        let program = std::env::current_exe().context("cannot find this program")?;
        let mut child = Command::new(program)
            .args(line)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot start the traced process")?;
        let pid = Pid::from_raw(i32::try_from(child.id())?);
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let memory = File::open(format!("/proc/{pid}/mem"));
        let mut traced = Traced {
            child,
            pid,
            memory: memory.context("cannot read the traced process's memory")?,
            decoded: HashMap::new(),
            infos: InstructionInfoFactory::new(),
        };
        let mut ready = String::new();
        BufReader::new(stdout.context("it has no output")?).read_line(&mut ready)?;
        ensure!(ready == "ready\n", "this program has no lookups to trace");
        ptrace::attach(pid).context("the system does not allow tracing (ptrace)")?;
        traced.run_to_stop(None)?;
        ptrace::cont(pid, None)?;
        stdin.context("it has no input")?.write_all(b"go\n")?;
        Ok(traced)
    }

    /// Waits until the process stops, and passes its other signals on. If it was stepped, returns
    /// false after a step.
    fn run_to_stop(&mut self, mut stepped: Option<Signal>) -> Result<bool> {
        loop {
            match waitpid(self.pid, None)? {
                WaitStatus::Stopped(_, Signal::SIGSTOP) => return Ok(true),
                WaitStatus::Stopped(_, signal) if stepped == Some(signal) => return Ok(false),
                WaitStatus::Stopped(_, signal) => match stepped.take() {
                    // A handler's instructions are counted too; there is none.
                    Some(trap) => {
                        ptrace::step(self.pid, signal)?;
                        stepped = Some(trap);
                    }
                    None => ptrace::cont(self.pid, signal)?,
                },
                ended => bail!("the traced process ended early: {ended:?}"),
            }
        }
    }

    /// Runs to the next stop, then in steps to the one after it.
    fn section(&mut self) -> Result<Section> {
        self.run_to_stop(None)?;
        let data = anonymous_memory(&std::fs::read_to_string(format!(
            "/proc/{}/maps",
            self.pid
        ))?);
        let mut lines = HashSet::new();
        let mut steps = 0;
        loop {
            self.touched(&data, &mut lines)?;
            ptrace::step(self.pid, None)?;
            if self.run_to_stop(Some(Signal::SIGTRAP))? {
                break;
            }
            steps += 1;
            ensure!(steps < STEPS_MAX, "more than {STEPS_MAX} instructions");
        }
        ptrace::cont(self.pid, None)?;
        Ok(Section {
            steps,
            lines: lines.len(),
        })
    }

    /// Adds the lines that the next instruction reads and writes.
    fn touched(&mut self, data: &[Range<u64>], lines: &mut HashSet<u64>) -> Result<()> {
        let registers = ptrace::getregs(self.pid)?;
        let at = registers.rip;
        if !self.decoded.contains_key(&at) {
            let mut bytes = [0; INSTRUCTION_BYTES_MAX];
            let read = self.memory.read_at(&mut bytes, at)?;
            let mut decoder = Decoder::with_ip(64, &bytes[..read], at, DecoderOptions::NONE);
            let instruction = decoder.decode();
            let used = self.infos.info(&instruction).used_memory();
            let accessed = used
                .iter()
                .filter(|used| used.access() != OpAccess::NoMemAccess);
            self.decoded.insert(at, accessed.copied().collect());
        }
        for used in self.decoded.get(&at).into_iter().flatten() {
            let Some(start) = used.virtual_address(0, |register, _, _| value(&registers, register))
            else {
                continue;
            };
            let last = start.saturating_add(used.memory_size().size().max(1) as u64 - 1);
            if data.iter().any(|range| range.contains(&start)) {
                lines.extend(start / LINE_BYTES..=last / LINE_BYTES);
            }
        }
        Ok(())
    }
}

/// A register's value, or the base of a segment; `None` for those that address no data of a lookup.
fn value(registers: &nix::libc::user_regs_struct, register: Register) -> Option<u64> {
    Some(match register.full_register() {
        Register::RAX => registers.rax,
        Register::RBX => registers.rbx,
        Register::RCX => registers.rcx,
        Register::RDX => registers.rdx,
        Register::RSI => registers.rsi,
        Register::RDI => registers.rdi,
        Register::RBP => registers.rbp,
        Register::RSP => registers.rsp,
        Register::R8 => registers.r8,
        Register::R9 => registers.r9,
        Register::R10 => registers.r10,
        Register::R11 => registers.r11,
        Register::R12 => registers.r12,
        Register::R13 => registers.r13,
        Register::R14 => registers.r14,
        Register::R15 => registers.r15,
        Register::FS => registers.fs_base,
        Register::GS => registers.gs_base,
        Register::CS | Register::DS | Register::ES | Register::SS => 0,
        _ => return None,
    })
}

/// The ranges of a process's memory that neither a file nor the stack nor the heap has: large
/// blocks, among them all pages of a run.
fn anonymous_memory(maps: &str) -> Vec<Range<u64>> {
    let ranges = maps.lines().filter_map(|line| {
        let mut fields = line.split_whitespace();
        let (start, end) = fields.next()?.split_once('-')?;
        // Access, offset, device, inode; then the file's name.
        let name = fields.nth(4).unwrap_or_default();
        let parse = |text| u64::from_str_radix(text, 16).ok();
        let range = parse(start)?..parse(end)?;
        (name.is_empty() || name.starts_with("[anon")).then_some(range)
    });
    ranges.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_blocks_are_data_and_files_stack_and_heap_are_not() {
        let maps = "\
55d0-55e0 r-xp 00002000 fd:01 1234 /usr/bin/x
7000-8000 rw-p 00000000 00:00 0 [heap]
9000-a000 rw-p 00000000 00:00 0 \n\
b000-c000 rw-p 00000000 00:00 0 [anon:pages]
d000-e000 rw-p 00000000 00:00 0 [stack]";
        assert_eq!(anonymous_memory(maps), [0x9000..0xa000, 0xb000..0xc000]);
    }
}
