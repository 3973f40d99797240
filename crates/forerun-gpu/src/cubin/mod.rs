//! The kernels' machine code: embedded at build time, or compiled by NVRTC from the source.
//!
//! | the device | compiler found at build time | none found |
//! |---|---|---|
//! | 8.x | the cubin for 8.0, which all of 8.x run | NVRTC, for the device, once: the cubin is kept on disk |
//! | 9.x | the cubin for 9.0 | the same |
//! | newer | PTX for 9.0, which the driver compiles and keeps | the same |
//!
//! The source is always embedded in one piece, so a program needs no file of this crate at run
//! time. NVRTC is a library of the CUDA toolkit. It is loaded at run time, and only if it is
//! needed.

mod disk_cache;
mod nvrtc;

use disk_cache::Cache;
use std::borrow::Cow;

include!(concat!(env!("OUT_DIR"), "/embedded.rs"));

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

/// One image with all kernels for a device of this compute capability, in the form that
/// `cuModuleLoadData` takes: a cubin, or PTX with a terminating zero.
pub(crate) fn image(capability: (u32, u32)) -> Result<Cow<'static, [u8]>, CubinError> {
    match embedded(capability) {
        Some(image) => Ok(Cow::Borrowed(image)),
        None => compiled(capability, Cache::of_user().as_ref()).map(Cow::Owned),
    }
}

/// Like [`image`], but compiled on this machine even if an image was embedded. It serves drivers
/// that are older than the compiler that made the embedded image.
pub(crate) fn recompiled(capability: (u32, u32)) -> Result<Vec<u8>, CubinError> {
    compiled(capability, Cache::of_user().as_ref())
}

fn embedded(capability: (u32, u32)) -> Option<&'static [u8]> {
    match capability.0 {
        8 => SM_80,
        9 => SM_90,
        10.. => PTX_90,
        _ => None,
    }
}

/// Reads the image from the cache, or compiles it with NVRTC and caches it.
fn compiled(capability: (u32, u32), cache: Option<&Cache>) -> Result<Vec<u8>, CubinError> {
    let compiler = nvrtc::Compiler::load().ok_or(CubinError::NoCompiler { capability })?;
    let version = compiler.version()?;
    let key = disk_cache::Key::of(&(SOURCE, capability, version, nvrtc::OPTIONS));
    if let Some(image) = cache.and_then(|cache| cache.get(&key)) {
        return Ok(image);
    }
    let image = compiler.compile(SOURCE, capability)?;
    if let Some(cache) = cache {
        cache.put(&key, &image);
    }
    Ok(image)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ELF: &[u8] = b"\x7fELF";

    /// The kernels of `study`.
    const STUDY_LISTS: [&str; 2] = [
        include_str!("../../kernels/busy.list"),
        include_str!("../../kernels/roofline.list"),
    ];

    /// The lists of the kernels that this build has.
    fn lists() -> Vec<&'static str> {
        let mut lists = vec![
            include_str!("../../kernels/gather.list"),
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
        assert!(names.len() >= 31 + 17, "{names:?}");
        names
    }

    fn holds(image: &[u8], name: &str) -> bool {
        image.windows(name.len()).any(|w| w == name.as_bytes())
    }

    /// If this variable demands NVRTC, these tests must not pass without it.
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
    fn embedded_images_have_every_kernel_and_fit_their_devices() {
        for (capability, image) in [((8, 0), SM_80), ((9, 0), SM_90)] {
            assert_eq!(embedded(capability), image);
            assert_eq!(embedded((capability.0, 6)), image);
            let Some(image) = image else { continue };
            assert!(image.starts_with(ELF));
            for name in expected_names(capability) {
                assert!(holds(image, name), "{name}, {capability:?}");
            }
        }
        assert_eq!(embedded((7, 5)), None);
        assert_eq!(embedded((12, 0)), PTX_90);
        if let Some(ptx) = PTX_90 {
            assert!(holds(ptx, ".target sm_90") && ptx.ends_with(b"\0"));
        }
    }

    #[test]
    fn nvrtc_compiles_the_kernels_once_or_is_reported_missing() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path().join("kernels"));
        let kept = || std::fs::read_dir(folder.path().join("kernels")).map_or(0, |d| d.count());
        for (at, capability) in [(8, 0), (9, 0)].into_iter().enumerate() {
            match compiled(capability, Some(&cache)) {
                Ok(image) => {
                    assert!(image.starts_with(ELF));
                    for name in expected_names(capability) {
                        assert!(holds(&image, name), "{name}, {capability:?}");
                    }
                    assert_eq!(kept(), at + 1);
                    assert_eq!(compiled(capability, Some(&cache)), Ok(image));
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
        match compiled((3, 5), None) {
            Err(CubinError::NoCompiler { .. }) => assert!(!nvrtc_is_expected()),
            Err(error @ CubinError::Compile { .. }) => {
                assert!(error.to_string().contains("3.5"), "{error}");
            }
            other => panic!("{other:?}"),
        }
    }
}
