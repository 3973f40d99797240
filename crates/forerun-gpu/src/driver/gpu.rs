//! A device, its primary context, and its properties.

use super::api::{self, check};
use super::image::Image;
use super::module::Kernel;
use crate::{CudaVersion, GpuError};
use cudarc::driver::sys::{
    self, CUdevice, CUdevice_attribute as Attribute, CUstreamCaptureMode as CaptureMode,
};
use forerun_core::sync::{Mutex, OnceLock, PoisonError};
use forerun_core::{Owner, PerProcess};
use std::ffi::{CStr, c_char};
use std::fmt;
use std::marker::PhantomData;
use std::path::Path;
use std::sync::{Arc, Weak};

/// The oldest supported devices: those with cp.async.
const OLDEST_DEVICE: (u32, u32) = (8, 0);

/// An open device. Clones share it.
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
    /// The process that opened the device. Memory, streams and events bind their device for each
    /// call of the driver, including the call that frees them. Binding fails in a fork, so these
    /// objects do nothing there.
    owner: Owner,
    device: CUdevice,
    context: sys::CUcontext,
    info: DeviceInfo,
    kernels: OnceLock<Result<Arc<Image>, GpuError>>,
}

// SAFETY: a context's handle may be used from any thread, and by several at a time, because the
// driver does the necessary locking. Nothing else in the struct is bound to a thread.
unsafe impl Send for Inner {}
// SAFETY: as above; its fields are only read.
unsafe impl Sync for Inner {}

impl Drop for Inner {
    fn drop(&mut self) {
        if !self.owner.is_this_process() {
            return;
        }
        // No error can be reported: every clone is gone.
        let _ = self.unload_kernels();
        // SAFETY: this releases what `open` retained, once.
        let _ = unsafe { sys::cuDevicePrimaryCtxRelease_v2(self.device) };
    }
}

impl Inner {
    /// As long as another library retains the context, a loaded image keeps its memory.
    fn unload_kernels(&self) -> Result<(), GpuError> {
        let Some(Ok(image)) = self.kernels.get() else {
            return Ok(());
        };
        let _current = self.bind()?;
        // A stream of another library may still have a launch to run. If a stream is being
        // captured, the device cannot be waited for, and the image stays loaded.
        // SAFETY: the context is current on this thread.
        check("cuCtxSynchronize", unsafe { sys::cuCtxSynchronize() })?;
        // SAFETY: the context is current, no work is pending, and every handle of the device, which
        // a launch needs, is gone.
        unsafe { image.unload() }
    }

    /// See [`Gpu::bind`].
    fn bind(&self) -> Result<CurrentContext, GpuError> {
        self.owner.check()?;
        // SAFETY: the context is retained for as long as this value lives.
        check("cuCtxPushCurrent", unsafe {
            sys::cuCtxPushCurrent_v2(self.context)
        })?;
        Ok(CurrentContext {
            capture_mode: exchange_capture_mode(CaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED),
            _thread: PhantomData,
        })
    }
}

/// The devices that this process has open, so that each loads its kernels once.
static OPEN: PerProcess<Mutex<Vec<Weak<Inner>>>> = PerProcess::new();

impl Gpu {
    /// Opens the device with this number, counted from 0 in the driver's order. If it is open
    /// already, the result is another handle of it.
    ///
    /// The last handle's drop waits for the device and unloads the kernels. A graph of another
    /// library that has captured them must not be replayed after that.
    ///
    /// It retains the device's primary context, the one that the CUDA runtime uses and therefore
    /// PyTorch too.
    ///
    /// # Errors
    /// - [`GpuError::NoDriver`], [`GpuError::StubDriver`], [`GpuError::NoDevice`]: there is no GPU
    ///   (see [`GpuError::is_absent`]).
    /// - [`GpuError::NoSuchDevice`].
    /// - The driver or the device is too old, or the driver failed.
    pub fn open(ordinal: usize) -> Result<Gpu, GpuError> {
        let driver = api::load()?;
        let devices = Gpu::count()?;
        if devices == 0 {
            return Err(GpuError::NoDevice);
        }
        if ordinal >= devices {
            return Err(GpuError::NoSuchDevice { ordinal, devices });
        }
        // A panic elsewhere leaves the list usable.
        let open = OPEN.get_or_init(Mutex::default);
        let mut open = open.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|gpu| gpu.strong_count() != 0);
        let same = |gpu: &Arc<Inner>| gpu.info.ordinal == ordinal;
        if let Some(gpu) = open.iter().filter_map(Weak::upgrade).find(same) {
            return Ok(Gpu(gpu));
        }
        let mut device = 0;
        // SAFETY: the driver is loaded and writes one number to the given place.
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
        // SAFETY: the device comes from the driver, which writes one handle to the given place.
        check("cuDevicePrimaryCtxRetain", unsafe {
            sys::cuDevicePrimaryCtxRetain(&mut context, device)
        })?;
        let gpu = Arc::new(Inner {
            owner: Owner::this_process(),
            device,
            context,
            info,
            kernels: OnceLock::new(),
        });
        open.push(Arc::downgrade(&gpu));
        Ok(Gpu(gpu))
    }

    /// Opens the device whose context is current on this thread (what `cudaSetDevice` chose), or
    /// the first device if there is none.
    ///
    /// # Errors
    /// Those of [`Gpu::open`].
    pub fn open_current() -> Result<Gpu, GpuError> {
        api::load()?;
        let mut current = 0;
        // SAFETY: the driver is loaded and writes one number to the given place.
        let result = unsafe { sys::cuCtxGetDevice(&mut current) };
        if result != sys::CUresult::CUDA_SUCCESS {
            // Without a current context.
            return Gpu::open(0);
        }
        for ordinal in 0..Gpu::count()? {
            let mut device = 0;
            // SAFETY: as above.
            check("cuDeviceGet", unsafe {
                sys::cuDeviceGet(&mut device, ordinal as i32)
            })?;
            if device == current {
                return Gpu::open(ordinal);
            }
        }
        Gpu::open(0)
    }

    /// The number of devices.
    ///
    /// # Errors
    /// Those of [`Gpu::open`] if there is no driver.
    pub fn count() -> Result<usize, GpuError> {
        api::load()?;
        let mut devices = 0;
        // SAFETY: the driver is loaded and writes one number to the given place.
        check("cuDeviceGetCount", unsafe {
            sys::cuDeviceGetCount(&mut devices)
        })?;
        Ok(devices.max(0) as usize)
    }

    /// The device's properties.
    pub fn info(&self) -> &DeviceInfo {
        &self.0.info
    }

    /// Whether both are the same device.
    pub fn is(&self, other: &Gpu) -> bool {
        self.0.device == other.0.device
    }

    /// Checks that `other`, the device of some object, is this device.
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

    /// Waits until all work on all streams of the device's context is done.
    ///
    /// # Errors
    /// The device's error if any work failed.
    pub fn synchronize(&self) -> Result<(), GpuError> {
        let _current = self.bind()?;
        // SAFETY: the context is current on this thread.
        check("cuCtxSynchronize", unsafe { sys::cuCtxSynchronize() })
    }

    /// Maximum shared memory per block, for kernels that declare that they need it.
    pub(crate) fn shared_bytes_max(&self) -> Result<u32, GpuError> {
        let attribute = Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN;
        attribute_of(self.0.device, attribute)
    }

    /// Checks that this process opened the device. A fork has neither its pinned memory nor the
    /// threads that may hold locks, so calls check this before they touch either.
    pub(crate) fn expect_process(&self) -> Result<(), GpuError> {
        Ok(self.0.owner.check()?)
    }

    /// Makes the device's context current on this thread until the returned value is dropped, so
    /// that the driver's calls use it. Afterwards the thread has the context that it had before:
    /// another library, such as PyTorch, may rely on it.
    ///
    /// Until then, a capture by another thread does not forbid calls here. In CUDA's default mode,
    /// which `torch.cuda.graph` uses, an allocation on any thread would fail and break the capture.
    /// Nothing here is meant for another thread's graph.
    ///
    /// # Errors
    /// [`GpuError::Forked`] in every process except the one that opened the device; the driver's
    /// error.
    pub(crate) fn bind(&self) -> Result<CurrentContext, GpuError> {
        self.0.bind()
    }

    /// The kernel with this name. The first call loads the compiled kernels.
    pub(crate) fn kernel(&self, name: &'static str) -> Result<Kernel, GpuError> {
        let _current = self.bind()?;
        let loaded = self
            .0
            .kernels
            .get_or_init(|| Image::load(self).map(Arc::new));
        match loaded {
            Ok(image) => image.kernel(name),
            Err(error) => Err(error.clone()),
        }
    }
}

/// Sets this thread's mode for captures and returns the previous one, or `None` if that failed.
fn exchange_capture_mode(mut mode: CaptureMode) -> Option<CaptureMode> {
    // SAFETY: the driver reads one mode and writes another to its place.
    let result = unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut mode) };
    (result == sys::CUresult::CUDA_SUCCESS).then_some(mode)
}

/// A device's context that is current on this thread, on top of the previous one.
#[must_use = "the context is current only while this value lives"]
pub(crate) struct CurrentContext {
    /// The thread's previous mode for captures, unless it could not be changed.
    capture_mode: Option<CaptureMode>,
    _thread: PhantomData<*const ()>, // it belongs to one thread
}

impl Drop for CurrentContext {
    fn drop(&mut self) {
        if let Some(mode) = self.capture_mode {
            exchange_capture_mode(mode);
        }
        let mut context = std::ptr::null_mut();
        // A failure here leaves the thread's contexts as they are, and nothing can be done.
        // SAFETY: `bind` pushed a context on this thread. The driver writes one handle.
        let _ = unsafe { sys::cuCtxPopCurrent_v2(&mut context) };
    }
}

impl fmt::Debug for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Gpu").field(&self.0.info).finish()
    }
}

/// A device's properties.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// The device's number, from 0.
    pub ordinal: usize,
    /// The device's name according to the driver.
    pub name: String,
    /// Compute capability, major and minor.
    pub compute_capability: (u32, u32),
    /// Number of streaming multiprocessors.
    pub multiprocessors: u32,
    /// Maximum number of resident threads per multiprocessor.
    pub threads_per_multiprocessor: u32,
    /// Size of the device memory.
    pub memory_bytes: u64,
    /// Size of the L2 cache.
    pub l2_bytes: u64,
    /// Number of copy engines.
    pub copy_engines: u32,
    /// Address on the bus: `0000:3b:00.0`.
    pub pci_address: String,
    /// The link to the host, if the system reports it.
    pub pcie: Option<PcieLink>,
    /// Whether it reads the host's memory through the host's page tables, as a GPU that NVLink
    /// connects to a Grace CPU does.
    pub shares_page_tables: bool,
    /// The CUDA version that the driver supports.
    pub driver: CudaVersion,
}

/// The link between a device and the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PcieLink {
    /// Current speed in the system's format: `32.0 GT/s PCIe`. An idle device may have lowered it.
    pub speed: String,
    /// Maximum speed of the device.
    pub speed_max: String,
    /// Number of lanes.
    pub lanes: u32,
    /// Maximum payload of a packet (128 to 4,096 bytes), as the system has set it. Only root can
    /// read it.
    pub payload_bytes: Option<u32>,
}

impl PcieLink {
    /// Reads what the system reports about the device at a bus address.
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
            payload_bytes: std::fs::read(folder.join("config"))
                .ok()
                .and_then(|config| payload_bytes(&config)),
        })
    }
}

/// The maximum payload in a device's configuration space:
///
/// ```text
///   0x06        status: bit 4 says that there are capabilities
///   0x34        offset of the first one:   | number | offset of the next | ...
///   number 16   PCI Express:   | 16 | next | 6 bytes | device control |       bits 5 to 7: payload = 128 << bits
/// ```
fn payload_bytes(config: &[u8]) -> Option<u32> {
    const PCI_EXPRESS: u8 = 0x10;
    if config.get(0x06)? & 1 << 4 == 0 {
        return None;
    }
    let mut at = usize::from(*config.get(0x34)?);
    // A list in 256 bytes has at most 48 entries; a damaged one might be circular.
    for _ in 0..48 {
        if at == 0 {
            return None;
        }
        if *config.get(at)? == PCI_EXPRESS {
            let control = u16::from_le_bytes([*config.get(at + 8)?, *config.get(at + 9)?]);
            // 6 and 7 are reserved.
            let bits = control >> 5 & 7;
            return (bits < 6).then(|| 128 << bits);
        }
        at = usize::from(*config.get(at + 1)?);
    }
    None
}

impl DeviceInfo {
    fn read(ordinal: usize, device: CUdevice, driver: CudaVersion) -> Result<Self, GpuError> {
        let attribute = |attribute: Attribute| attribute_of(device, attribute);
        let mut memory_bytes = 0;
        // SAFETY: as above, one size.
        check("cuDeviceTotalMem", unsafe {
            sys::cuDeviceTotalMem_v2(&mut memory_bytes, device)
        })?;
        let name = text("cuDeviceGetName", |text, len| {
            // SAFETY: the driver writes at most `len` bytes, including a zero.
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
            shares_page_tables: attribute(
                Attribute::CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES,
            )? != 0,
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

/// One of a device's numbers.
fn attribute_of(device: CUdevice, attribute: Attribute) -> Result<u32, GpuError> {
    let mut value = 0;
    // SAFETY: the device comes from the driver, which writes one int to the given place.
    check("cuDeviceGetAttribute", unsafe {
        sys::cuDeviceGetAttribute(&mut value, attribute, device)
    })?;
    Ok(value.max(0) as u32)
}

/// Reads a short text that the driver writes.
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
        assert_eq!((link.lanes, link.payload_bytes), (16, None));
        assert_eq!(PcieLink::read(folder.path(), "0000:00:00.0"), None);
    }

    #[test]
    fn the_payload_is_read_from_the_configuration_space() {
        let mut config = vec![0u8; 256];
        config[0x06] = 0x10;
        config[0x34] = 0x60;
        // Power management, then PCI Express with a payload of 256 bytes.
        config[0x60..0x62].copy_from_slice(&[0x01, 0x78]);
        config[0x78..0x82].copy_from_slice(&[0x10, 0, 2, 0, 0, 0, 0, 0, 0x3f, 0x59]);
        assert_eq!(payload_bytes(&config), Some(256));
        config[0x80] = 0x1f;
        assert_eq!(payload_bytes(&config), Some(128));
        config[0x80] = 0xdf;
        assert_eq!(payload_bytes(&config), None, "6 is reserved");
        // What a user without rights can read ends before the capabilities.
        assert_eq!(payload_bytes(&config[..64]), None);
        config[0x61] = 0x60;
        assert_eq!(payload_bytes(&config), None, "a circular list");
        config[0x06] = 0;
        assert_eq!(payload_bytes(&config), None, "no list");
    }

    #[test]
    fn opening_reports_the_device_or_its_absence() {
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
