//! The kernels' code: embedded at build time, or compiled by NVRTC from the source.
//!
//! | the device | in this order, until the driver loads one |
//! |---|---|
//! | 8.x | machine code for 8.0, PTX for 8.0, NVRTC |
//! | 9.x | machine code for 9.0, PTX for 9.0, NVRTC |
//! | 10.x | machine code for 10.0, PTX for 9.0, NVRTC |
//! | 12.x | machine code for 12.0, PTX for 9.0, NVRTC |
//! | other | PTX for 9.0, NVRTC |
//!
//! A driver loads machine code from its own major version of CUDA or an older one. It loads PTX
//! from its own version or an older one, and compiles and keeps it. Only a build that found a
//! compiler has embedded code, and only one of CUDA 12.8 or later code for 10.0 and 12.0. Every
//! supported driver loads the code that `.ci/nvcc12` generates, which has neither.
//!
//! The source is always embedded in one piece, so a program needs no file of this crate at run
//! time. NVRTC is a library of the CUDA toolkit. It is loaded at run time, and only if it is
//! needed; its machine code is kept on disk.

mod disk_cache;
mod nvrtc;

use crate::CudaVersion;
use disk_cache::Cache;

include!(concat!(env!("OUT_DIR"), "/embedded.rs"));

/// All kernels in the form that `cuModuleLoadData` takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Code<B> {
    /// Machine code (an ELF file), or PTX with a terminating zero.
    pub(crate) image: B,
    /// The oldest driver that loads it.
    pub(crate) needed: CudaVersion,
}

impl<B> Code<B> {
    /// Machine code, made by a compiler of this version.
    pub(crate) fn machine(image: B, compiler: CudaVersion) -> Code<B> {
        let needed = CudaVersion(compiler.0 / 1000 * 1000);
        Code { image, needed }
    }

    /// PTX, made by a compiler of this version.
    pub(crate) fn ptx(image: B, compiler: CudaVersion) -> Code<B> {
        Code {
            image,
            needed: compiler,
        }
    }
}

/// Why the machine code is missing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CubinError {
    /// There is no compiler.
    #[error(
        "this program was built without kernels for compute capability {}.{}, and NVRTC, which \
         would compile them now, is missing: cannot load the library libnvrtc of a CUDA toolkit",
        capability.0, capability.1
    )]
    NoCompiler {
        /// The device's compute capability.
        capability: (u32, u32),
    },
    /// NVRTC failed for a reason other than the source.
    #[error("NVRTC: {call} failed: {text}")]
    Nvrtc {
        /// The function that failed.
        call: &'static str,
        /// NVRTC's message.
        text: String,
    },
    /// NVRTC rejected the source or the device.
    #[error(
        "NVRTC {}.{} does not compile the kernels for compute capability {}.{}:\n{log}",
        version.0,
        version.1,
        capability.0,
        capability.1
    )]
    Compile {
        /// NVRTC's version.
        version: (i32, i32),
        /// The device's compute capability.
        capability: (u32, u32),
        /// The compiler's messages.
        log: String,
    },
}

/// The embedded code that fits a device of this compute capability, the best first.
pub(crate) fn embedded(capability: (u32, u32)) -> Vec<Code<&'static [u8]>> {
    let (machine, ptx) = match capability.0 {
        8 => (SM_80, PTX_80),
        9 => (SM_90, PTX_90),
        10 => (SM_100, PTX_90),
        12 => (SM_120, PTX_90),
        11 | 13.. => (None, PTX_90),
        _ => (None, None),
    };
    let machine = machine.map(|image| Code::machine(image, COMPILER));
    machine
        .into_iter()
        .chain(ptx.map(|image| Code::ptx(image, COMPILER)))
        .collect()
}

/// Machine code compiled by NVRTC on this machine.
pub(crate) fn compiled(capability: (u32, u32)) -> Result<Code<Vec<u8>>, CubinError> {
    compiled_with(capability, Cache::of_user().as_ref())
}

/// Reads the image from the cache, or compiles it with NVRTC and caches it.
fn compiled_with(
    capability: (u32, u32),
    cache: Option<&Cache>,
) -> Result<Code<Vec<u8>>, CubinError> {
    let compiler = nvrtc::Compiler::load().ok_or(CubinError::NoCompiler { capability })?;
    let version = compiler.version()?;
    let of_version = |image| {
        let (major, minor) = (version.0.unsigned_abs(), version.1.unsigned_abs());
        Code::machine(image, CudaVersion(major * 1000 + minor * 10))
    };
    let key = disk_cache::Key::of(&(SOURCE, capability, version, nvrtc::OPTIONS));
    if let Some(image) = cache.and_then(|cache| cache.get(&key)) {
        return Ok(of_version(image));
    }
    let image = compiler.compile(SOURCE, capability)?;
    if let Some(cache) = cache {
        cache.put(&key, &image);
    }
    Ok(of_version(image))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ELF: &[u8] = b"\x7fELF";

    /// The kernels of `study`.
    const STUDY_LISTS: [&str; 5] = [
        include_str!("../../kernels/gather_study.list"),
        include_str!("../../kernels/table_study.list"),
        include_str!("../../kernels/busy.list"),
        include_str!("../../kernels/litmus.list"),
        include_str!("../../kernels/roofline.list"),
    ];

    /// The lists of the kernels that this build has.
    fn lists() -> Vec<&'static str> {
        let mut lists = vec![
            include_str!("../../kernels/gather.list"),
            include_str!("../../kernels/hot_pool.list"),
            include_str!("../../kernels/table.list"),
        ];
        if cfg!(feature = "study") {
            lists.extend(STUDY_LISTS);
        }
        lists
    }

    /// Names of the kernels that a device of this capability has.
    fn expected_names(capability: (u32, u32)) -> Vec<&'static str> {
        let listed = lists()
            .into_iter()
            .flat_map(|list| list.lines())
            .filter_map(|line| {
                let (kind, rest) = line.split_once('(')?;
                let there = kind == "KERNEL" || (kind == "KERNEL90" && capability >= (9, 0));
                there.then_some(rest.split(',').next()?)
            });
        let names: Vec<_> = listed.collect();
        assert!(names.len() >= 8 + 18, "{names:?}");
        names
    }

    fn holds(image: &[u8], name: &str) -> bool {
        image.windows(name.len()).any(|w| w == name.as_bytes())
    }

    /// If this variable requires NVRTC, these tests must not pass without it.
    fn nvrtc_is_expected() -> bool {
        std::env::var_os("FORERUN_EXPECT_NVRTC").is_some()
    }

    #[test]
    fn the_source_is_in_one_piece_and_has_every_kernel() {
        for line in lists().into_iter().flat_map(str::lines) {
            assert!(
                !line.starts_with("KERNEL") || SOURCE.contains(line),
                "{line}"
            );
        }
        let is_study = |line: &str| line.starts_with("KERNEL") && SOURCE.contains(line);
        let has_study = STUDY_LISTS.into_iter().flat_map(str::lines).any(is_study);
        assert_eq!(has_study, cfg!(feature = "study"));
        for line in SOURCE.lines().filter(|l| l.starts_with("#include")) {
            assert!(line.contains("\"shim/"), "{line} was left to the compiler");
        }
        // Each file appears once.
        assert_eq!(SOURCE.matches("struct GatherParams {").count(), 1);
    }

    #[test]
    fn embedded_code_has_every_kernel_and_fits_its_devices() {
        for (capability, machine, ptx, target) in [
            ((8, 0), SM_80, PTX_80, ".target sm_80"),
            ((9, 0), SM_90, PTX_90, ".target sm_90"),
            ((10, 0), SM_100, PTX_90, ".target sm_90"),
            ((12, 0), SM_120, PTX_90, ".target sm_90"),
        ] {
            let all = embedded(capability);
            let images: Vec<_> = all.iter().map(|code| code.image).collect();
            assert_eq!(images, machine.into_iter().chain(ptx).collect::<Vec<_>>());
            assert_eq!(embedded((capability.0, 6)), all);
            let (Some(machine), Some(ptx)) = (machine, ptx) else {
                let is_older = COMPILER < CudaVersion(12_080) && capability >= (10, 0);
                assert!(machine.is_none() && (ptx.is_none() || is_older));
                continue;
            };
            assert!(machine.starts_with(ELF));
            assert!(holds(ptx, target) && ptx.ends_with(b"\0"));
            for name in expected_names(capability) {
                assert!(holds(machine, name) && holds(ptx, name), "{name}, {target}");
            }
        }
        assert_eq!(embedded((7, 5)), []);
        let newest: Vec<_> = embedded((13, 0)).iter().map(|code| code.image).collect();
        assert_eq!(newest, PTX_90.into_iter().collect::<Vec<_>>());
    }

    /// What .ci/lib/kernels requires of the build that it makes.
    #[test]
    fn code_of_the_oldest_compiler_loads_with_every_supported_driver() {
        if let Some(expected) = std::env::var_os("FORERUN_EXPECT_COMPILER") {
            assert_eq!(expected.into_string(), Ok(COMPILER.to_string()));
            assert_eq!(embedded((9, 0)).len(), 2);
        }
        for code in [(8, 0), (9, 0), (12, 0), (13, 0)].into_iter().flat_map(embedded) {
            let major = CudaVersion(COMPILER.0 / 1000 * 1000);
            let expected = if code.image.starts_with(ELF) {
                major
            } else {
                COMPILER
            };
            assert_eq!(code.needed, expected);
        }
    }

    #[test]
    fn nvrtc_compiles_the_kernels_once_or_is_reported_missing() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path().join("kernels"));
        let kept = || std::fs::read_dir(folder.path().join("kernels")).map_or(0, |d| d.count());
        for (at, capability) in [(8, 0), (9, 0)].into_iter().enumerate() {
            match compiled_with(capability, Some(&cache)) {
                Ok(code) => {
                    assert!(code.image.starts_with(ELF) && code.needed.0 % 1000 == 0);
                    for name in expected_names(capability) {
                        assert!(holds(&code.image, name), "{name}, {capability:?}");
                    }
                    assert_eq!(kept(), at + 1);
                    assert_eq!(compiled_with(capability, Some(&cache)), Ok(code));
                    assert_eq!(kept(), at + 1);
                }
                Err(error) => {
                    assert!(!nvrtc_is_expected(), "{error}");
                    assert_eq!(error, CubinError::NoCompiler { capability });
                    assert!(error.to_string().contains("libnvrtc"));
                }
            }
        }
    }

    #[test]
    fn a_device_unknown_to_nvrtc_is_an_error_with_nvrtcs_message() {
        match compiled_with((3, 5), None) {
            Err(CubinError::NoCompiler { .. }) => assert!(!nvrtc_is_expected()),
            Err(error @ CubinError::Compile { .. }) => {
                assert!(error.to_string().contains("3.5"), "{error}");
            }
            other => panic!("{other:?}"),
        }
    }
}
