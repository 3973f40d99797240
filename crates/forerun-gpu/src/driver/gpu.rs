//! A device, its primary context, and what it is.

use super::api::{self, check};
use super::command::Scope;
use super::module::Image;
use crate::{CudaVersion, GpuError};
use cudarc::driver::sys::{self, CUdevice, CUdevice_attribute as Attribute};
use forerun_core::Owner;
use forerun_core::sync::OnceLock;
use std::ffi::{CStr, c_char};
use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// The oldest devices that the kernels are made for: those with cp.async.
const OLDEST_DEVICE: (u32, u32) = (8, 0);

/// A device, ready to be used. Clones are the same device.
///
/// ```no_run
/// use forerun_gpu::{Gpu, GpuError};
///
/// match Gpu::open(0) {
///     Ok(gpu) => println!("{}", gpu.info()),
///     Err(error) if error.is_absent() => println!("no GPU here: {error}"),
///     Err(error) => return Err(error),
/// }
/// # Ok::<(), GpuError>(())
/// ```
#[derive(Clone)]
pub struct Gpu(Arc<Inner>);

struct Inner {
    /// What belongs to a device (memory, streams, events) binds it before each call of the driver,
    /// also to be freed, and so does nothing in a fork.
    owner: Owner,
    device: CUdevice,
    context: sys::CUcontext,
    info: DeviceInfo,
    kernels: OnceLock<Result<Arc<Image>, GpuError>>,
}

// SAFETY: a context's handle may be used from any thread, several at a time: the driver locks what
// it must. Nothing else in it is bound to a thread.
unsafe impl Send for Inner {}
// SAFETY: as above; all of its own fields are only read.
unsafe impl Sync for Inner {}

impl Drop for Inner {
    fn drop(&mut self) {
        if !self.owner.is_this_process() {
            return;
        }
        // Nobody is left to be told of an error: whoever could tell has given up its clone.
        // SAFETY: this releases what `open` retained, once.
        let _ = unsafe { sys::cuDevicePrimaryCtxRelease_v2(self.device) };
    }
}

impl Gpu {
    /// The device of that number, counted from 0 in the driver's order.
    ///
    /// The device's primary context is retained: the one that the CUDA runtime, and with it
    /// PyTorch, uses too.
    ///
    /// # Errors
    /// [`GpuError::NoDriver`], [`GpuError::StubDriver`] or [`GpuError::NoDevice`] where there is no
    /// GPU (see [`GpuError::is_absent`]); [`GpuError::NoSuchDevice`]; a driver or a device that is
    /// too old; the driver's refusal.
    pub fn open(ordinal: usize) -> Result<Gpu, GpuError> {
        let driver = api::load()?;
        let devices = Gpu::count()?;
        if devices == 0 {
            return Err(GpuError::NoDevice);
        }
        if ordinal >= devices {
            return Err(GpuError::NoSuchDevice { ordinal, devices });
        }
        let mut device = 0;
        // SAFETY: the driver is loaded; it writes one number to the place it is given.
        check("cuDeviceGet", unsafe {
            sys::cuDeviceGet(&mut device, ordinal as i32)
        })?;
        let info = DeviceInfo::read(ordinal, device, driver)?;
        if info.compute_capability < OLDEST_DEVICE {
            return Err(GpuError::DeviceTooOld {
                name: info.name,
                found: info.compute_capability,
                needed: OLDEST_DEVICE,
            });
        }
        let mut context = std::ptr::null_mut();
        // SAFETY: the device comes from the driver; it writes one handle to the place it is given.
        check("cuDevicePrimaryCtxRetain", unsafe {
            sys::cuDevicePrimaryCtxRetain(&mut context, device)
        })?;
        let gpu = Gpu(Arc::new(Inner {
            owner: Owner::this_process(),
            device,
            context,
            info,
            kernels: OnceLock::new(),
        }));
        gpu.bind()?;
        Ok(gpu)
    }

    /// How many devices there are.
    ///
    /// # Errors
    /// As [`Gpu::open`], where there is no driver.
    pub fn count() -> Result<usize, GpuError> {
        api::load()?;
        let mut devices = 0;
        // SAFETY: the driver is loaded; it writes one number to the place it is given.
        check("cuDeviceGetCount", unsafe {
            sys::cuDeviceGetCount(&mut devices)
        })?;
        Ok(devices.max(0) as usize)
    }

    /// What the device is.
    pub fn info(&self) -> &DeviceInfo {
        &self.0.info
    }

    /// Whether both are the same device.
    pub fn is(&self, other: &Gpu) -> bool {
        self.0.device == other.0.device
    }

    /// That something that has to be on this device, and is on the other, is.
    pub(crate) fn expect(&self, other: &Gpu, what: &'static str) -> Result<(), GpuError> {
        if self.is(other) {
            return Ok(());
        }
        Err(GpuError::OtherDevice {
            what,
            found: other.info().ordinal,
            expected: self.info().ordinal,
        })
    }

    /// Runs `work`, in which commands may be put on streams, and returns when the device has done
    /// them all, be it that `work` fails or panics.
    ///
    /// # Errors
    /// What `work` gives; else the device's, if any of the commands failed.
    pub fn scope<'env, T, E: From<GpuError>>(
        &self,
        work: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> Result<T, E>,
    ) -> Result<T, E> {
        Scope::run(self, work)
    }

    /// Waits until everything on all streams of the device's context is done.
    ///
    /// # Errors
    /// The device's, if anything failed.
    pub fn synchronize(&self) -> Result<(), GpuError> {
        self.bind()?;
        // SAFETY: the context is current on this thread.
        check("cuCtxSynchronize", unsafe { sys::cuCtxSynchronize() })
    }

    /// Makes the device's context the current one of this thread: what the driver's calls work on.
    ///
    /// # Errors
    /// [`GpuError::Forked`] in any process but the one that opened it; the driver's.
    pub(crate) fn bind(&self) -> Result<(), GpuError> {
        self.0.owner.check()?;
        // SAFETY: the context is retained for as long as this value lives.
        check("cuCtxSetCurrent", unsafe {
            sys::cuCtxSetCurrent(self.0.context)
        })
    }

    /// The compiled kernels, loaded at the first call. The context is current then.
    pub(crate) fn kernels(&self) -> Result<&Image, GpuError> {
        self.bind()?;
        let loaded = self
            .0
            .kernels
            .get_or_init(|| Image::load(self).map(Arc::new));
        match loaded {
            Ok(image) => Ok(image),
            Err(error) => Err(error.clone()),
        }
    }
}

impl fmt::Debug for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Gpu").field(&self.0.info).finish()
    }
}

/// What a device is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Its number, from 0.
    pub ordinal: usize,
    /// Its name, as the driver tells it.
    pub name: String,
    /// Its compute capability, major and minor.
    pub compute_capability: (u32, u32),
    /// Its streaming multiprocessors.
    pub multiprocessors: u32,
    /// The most threads that a multiprocessor holds at a time.
    pub threads_per_multiprocessor: u32,
    /// Its memory.
    pub memory_bytes: u64,
    /// Its second-level cache.
    pub l2_bytes: u64,
    /// Its copy engines.
    pub copy_engines: u32,
    /// Its place on the bus: `0000:3b:00.0`.
    pub pci_address: String,
    /// The link to the host, where the system tells.
    pub pcie: Option<PcieLink>,
    /// The CUDA version that the driver serves.
    pub driver: CudaVersion,
}

/// The link between a device and the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PcieLink {
    /// Its speed now, in the system's words: `32.0 GT/s PCIe`. An idle device may have lowered it.
    pub speed: String,
    /// The speed the device can do.
    pub speed_max: String,
    /// Its lanes.
    pub lanes: u32,
}

impl PcieLink {
    /// What the system tells of the device at a place of the bus.
    fn read(devices: &Path, pci_address: &str) -> Option<PcieLink> {
        let folder = devices.join(pci_address.to_lowercase());
        let word = |name: &str| {
            let text = std::fs::read_to_string(folder.join(name)).ok()?;
            Some(text.trim().to_owned())
        };
        Some(PcieLink {
            speed: word("current_link_speed")?,
            speed_max: word("max_link_speed")?,
            lanes: word("current_link_width")?.parse().ok()?,
        })
    }
}

impl DeviceInfo {
    fn read(ordinal: usize, device: CUdevice, driver: CudaVersion) -> Result<Self, GpuError> {
        let attribute = |attribute: Attribute| {
            let mut value = 0;
            // SAFETY: the device comes from the driver, which writes one int to the place given.
            check("cuDeviceGetAttribute", unsafe {
                sys::cuDeviceGetAttribute(&mut value, attribute, device)
            })?;
            Ok::<u32, GpuError>(value.max(0) as u32)
        };
        let mut memory_bytes = 0;
        // SAFETY: as above, one size.
        check("cuDeviceTotalMem", unsafe {
            sys::cuDeviceTotalMem_v2(&mut memory_bytes, device)
        })?;
        let name = text("cuDeviceGetName", |text, len| {
            // SAFETY: the driver writes at most `len` bytes with a zero among them.
            unsafe { sys::cuDeviceGetName(text, len, device) }
        })?;
        let pci_address = text("cuDeviceGetPCIBusId", |text, len| {
            // SAFETY: as above.
            unsafe { sys::cuDeviceGetPCIBusId(text, len, device) }
        })?;
        Ok(DeviceInfo {
            ordinal,
            name,
            compute_capability: (
                attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
                attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
            ),
            multiprocessors: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
            threads_per_multiprocessor: attribute(
                Attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR,
            )?,
            memory_bytes: memory_bytes as u64,
            l2_bytes: attribute(Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?.into(),
            copy_engines: attribute(Attribute::CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT)?,
            pcie: PcieLink::read(Path::new("/sys/bus/pci/devices"), &pci_address),
            pci_address,
            driver,
        })
    }
}

impl fmt::Display for DeviceInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}, {} multiprocessors, {:.1} GiB, compute capability {}.{}, driver for CUDA {}",
            self.name,
            self.multiprocessors,
            self.memory_bytes as f64 / (1u64 << 30) as f64,
            self.compute_capability.0,
            self.compute_capability.1,
            self.driver
        )?;
        if let Some(link) = &self.pcie {
            write!(f, ", {} x{}", link.speed_max, link.lanes)?;
        }
        Ok(())
    }
}

/// A short text that the driver writes.
fn text(
    call: &'static str,
    write: impl FnOnce(*mut c_char, i32) -> sys::CUresult,
) -> Result<String, GpuError> {
    let mut bytes = [0u8; 256];
    check(call, write(bytes.as_mut_ptr().cast(), bytes.len() as i32))?;
    let text = CStr::from_bytes_until_nul(&bytes).unwrap_or_default();
    Ok(text.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_read_from_the_systems_files() {
        let folder = tempfile::tempdir().unwrap();
        let device = folder.path().join("0000:3b:00.0");
        std::fs::create_dir(&device).unwrap();
        for (name, text) in [
            ("current_link_speed", "2.5 GT/s PCIe\n"),
            ("max_link_speed", "32.0 GT/s PCIe\n"),
            ("current_link_width", "16\n"),
        ] {
            std::fs::write(device.join(name), text).unwrap();
        }
        let link = PcieLink::read(folder.path(), "0000:3B:00.0").unwrap();
        assert_eq!(link.speed, "2.5 GT/s PCIe");
        assert_eq!(link.speed_max, "32.0 GT/s PCIe");
        assert_eq!(link.lanes, 16);
        assert_eq!(PcieLink::read(folder.path(), "0000:00:00.0"), None);
    }

    #[test]
    fn without_a_device_opening_says_so_and_with_one_it_tells_what_it_is() {
        match Gpu::open(0) {
            Ok(gpu) => {
                assert!(gpu.info().multiprocessors > 0 && !gpu.info().name.is_empty());
                let none = Gpu::open(10_000).unwrap_err();
                assert!(matches!(none, GpuError::NoSuchDevice { .. }), "{none}");
            }
            Err(error) => assert!(error.to_string().contains("driver"), "{error}"),
        }
    }
}
