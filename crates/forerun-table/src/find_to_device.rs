//! Lookups into device memory.
//!
//! ```text
//!   keys ──> device: copies its rows to their positions ──> hits
//!              └─ misses > host  ──rows──┐
//!                            └─> store ──┴──> pieces of pinned memory ──row gather──> their positions on the device
//! ```
//!
//! The lookup goes through the tiers like any other (`find.rs`) and gives the same guarantees: a
//! row's value is the one that was copied into a piece, which no other thread changes. While one
//! piece is being sent, the CPU fills the next.

use crate::Result;
use crate::find::{Lookup, Receiver};
use crate::host::{Host, Slots};
use crate::inner::Inner;
use forerun_gpu::GpuError;
use forerun_gpu::gather::{Delivery, Destination};

impl Inner {
    pub(crate) fn find_to_device(
        &self,
        keys: &[u64],
        mut rows: Destination<'_>,
        found: &mut [bool],
    ) -> Result<usize> {
        self.check_open()?;
        let device = self.device_for("find_to_device")?;
        device.expect(&rows)?;
        self.check_rows(keys, rows.len())?;
        self.check_found(keys, found)?;
        let mut lookup = Lookup::begin(self, keys);
        let asked = if !lookup.search_device(device, &mut rows, found) {
            Err(device.lost())
        } else if lookup.is_answered() {
            Ok(())
        } else {
            let brought = device.ring_pool.with(|ring| {
                ring.deliver(&mut rows, |delivery| {
                    let mut staged = Staged::of(delivery);
                    lookup.search_host(&mut staged, found);
                    lookup.search_store(&mut staged, found);
                    staged.failure.map_or(Ok(()), Err)
                })
            });
            brought.map_err(|error: GpuError| device.delivery_failed(error))
        };
        match asked {
            Ok(()) => lookup.end(),
            Err(error) => {
                found.fill(false);
                lookup.fail();
                Err(error)
            }
        }
    }
}

/// Sends rows to the device as they are found.
struct Staged<'s, 'd> {
    delivery: &'s mut Delivery<'d>,
    /// The destination positions of the current rows.
    places: Vec<u64>,
    /// The failure that ended the delivery. No row is sent after it.
    failure: Option<GpuError>,
}

impl<'s, 'd> Staged<'s, 'd> {
    fn of(delivery: &'s mut Delivery<'d>) -> Self {
        Staged {
            delivery,
            places: Vec::new(),
            failure: None,
        }
    }

    /// Looks up as many keys in the host tier as fit in the current piece. Returns the number of
    /// keys and of rows found.
    fn take_some_from(
        &mut self,
        host: &Host,
        keys: &[u64],
        mut place: impl FnMut(usize) -> usize,
        found: &mut [bool],
        slots: &mut Slots,
    ) -> Result<(usize, usize), GpuError> {
        let shape = self.delivery.shape();
        // If the piece is nearly full, send it: the cache misses of only a few keys would hardly
        // overlap.
        let least = (shape.piece_rows / 4).max(1).min(keys.len());
        let space = self.delivery.reserve(least)?;
        let asked = keys.len().min(space.len() / shape.row_bytes);
        let places = &mut self.places;
        places.clear();
        let next = |nth| {
            places.push(place(nth) as u64);
            places.len() - 1
        };
        let hits = host.find(&keys[..asked], space, next, &mut found[..asked], slots);
        self.delivery.commit(places)?;
        Ok((asked, hits))
    }

    fn take_one(&mut self, place: usize, row: &[u8]) -> Result<(), GpuError> {
        self.delivery.reserve(1)?[..row.len()].copy_from_slice(row);
        self.delivery.commit(&[place as u64])
    }
}

impl Receiver for Staged<'_, '_> {
    fn take_from(
        &mut self,
        host: &Host,
        keys: &[u64],
        mut place: impl FnMut(usize) -> usize,
        found: &mut [bool],
        slots: &mut Slots,
    ) -> usize {
        let (mut next, mut hits) = (0, 0);
        while next < keys.len() && self.failure.is_none() {
            let place = |nth| place(next + nth);
            match self.take_some_from(host, &keys[next..], place, &mut found[next..], slots) {
                Ok((asked, here)) => {
                    next += asked;
                    hits += here;
                }
                Err(error) => self.failure = Some(error),
            }
        }
        hits
    }

    fn take(&mut self, place: usize, row: &[u8]) {
        if self.failure.is_none() {
            self.failure = self.take_one(place, row).err();
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::broken_device::broken;
    use crate::{DeviceChoice, Dtype, Error, Table};
    use forerun_gpu::GpuError;

    #[test]
    fn a_device_that_fails_during_a_lookup_affects_only_its_rows() {
        let table = Table::builder(Dtype::I64, 1);
        let table = table.open_over(Some(broken(8))).unwrap();
        table.insert(&[1, 2], &[7; 16]).unwrap();
        let (mut rows, mut found) = ([0; 24], [true; 3]);
        for _ in 0..2 {
            let error = table.find_to_device(&[1, 9, 2], &mut rows[..], &mut found);
            let error = error.unwrap_err();
            let failure = table.stats().device.unwrap().failure;
            assert!(
                matches!(&error, Error::Device { reason } if failure.as_ref() == Some(reason)),
                "{error}, {failure:?}"
            );
            assert_eq!(found, [false; 3]);
        }
        let counts = table.stats().counts;
        assert_eq!((counts.failed_keys, counts.misses), (6, 0));
        assert_eq!(table.find(&[1, 9, 2], &mut rows, &mut found).unwrap(), 2);
    }

    #[test]
    fn a_lack_of_pinned_memory_is_tolerated_and_other_failures_lose_the_device() {
        let table = Table::builder(Dtype::I64, 1)
            .device_capacity(1)
            .device(DeviceChoice::Cpu)
            .open()
            .unwrap();
        table.insert(&[1], &[7; 8]).unwrap();
        let device = table.inner().unwrap().device().unwrap();
        let (bytes, memory) = (1 << 20, "pinned host memory");
        let error = device.delivery_failed(GpuError::OutOfMemory { bytes, memory });
        assert!(error.to_string().contains(memory), "{error}");
        let (mut row, mut found) = ([0; 8], [false]);
        let mut find = || table.find_to_device(&[1], &mut row[..], &mut found);
        assert_eq!(find().unwrap(), 1);
        device.delivery_failed(GpuError::NoDevice);
        assert!(matches!(find(), Err(Error::Device { .. })));
        assert_eq!((row, found), ([7; 8], [false]));
    }
}
