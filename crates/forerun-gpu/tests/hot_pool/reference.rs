//! A table of hot rows as a list of slots, searched from one end to the other.

use forerun_gpu::hot_pool::Eviction;

/// One table.
#[derive(Clone, Debug)]
pub struct Reference {
    eviction: Eviction,
    /// The position in each slot.
    pub held: Vec<Option<u32>>,
    /// LRU: the slots, the least recently used first.
    pub order: Vec<usize>,
    /// CLOCK: when each slot was used, until the hand has passed.
    pub used: Vec<u32>,
    pub hand: usize,
    pub time: u32,
}

/// What a resolve does.
#[derive(Debug, Default)]
pub struct Outcome {
    /// The slot of each position.
    pub slots: Vec<Option<usize>>,
    /// Host rows and the slots that they are copied to.
    pub fetched: Vec<(u64, usize)>,
    pub hits: u64,
    pub absent: u64,
}

impl Reference {
    pub fn new(eviction: Eviction, slots: usize) -> Reference {
        Reference {
            eviction,
            held: vec![None; slots],
            order: (0..slots).collect(),
            used: vec![0; slots],
            hand: 0,
            time: 0,
        }
    }

    pub fn resolve(
        &mut self,
        positions: &[i32],
        length: Option<i64>,
        host_row: impl Fn(u32) -> Option<u64>,
    ) -> Outcome {
        let mut outcome = Outcome::default();
        let is_present = |&position: &i32| {
            position >= 0 && length.is_none_or(|length| i64::from(position) < length)
        };
        let slots = self.held.len();
        let newest = match length {
            // Position p is in slot p.
            Some(length) if length <= slots as i64 => {
                let in_order = |position| is_present(position).then_some(*position as usize);
                outcome.slots = positions.iter().map(in_order).collect();
                outcome.absent = absent(positions, &outcome.slots);
                return outcome;
            }
            Some(length) => Some(length - 1),
            None => None,
        };
        let mut wanted: Vec<u32> = Vec::new();
        for position in positions.iter().filter(|position| is_present(position)) {
            let is_newest = newest == Some(i64::from(*position));
            if !is_newest && !wanted.contains(&(*position as u32)) {
                wanted.push(*position as u32);
            }
        }
        let is_hit = |held: &Option<u32>| held.is_some_and(|held| wanted.contains(&held));
        let hits: Vec<usize> = (0..slots)
            .filter(|&slot| is_hit(&self.held[slot]))
            .collect();
        outcome.hits = hits.len() as u64;
        let missing: Vec<u32> = wanted
            .iter()
            .copied()
            .filter(|&position| !self.held.contains(&Some(position)))
            .filter(|&position| host_row(position).is_some())
            .collect();
        let victims = match self.eviction {
            Eviction::Lru => self.oldest(&hits, missing.len()),
            Eviction::Clock => self.passed_by_the_hand(&hits, missing.len()),
        };
        for (&position, slot) in missing.iter().zip(victims) {
            self.held[slot] = Some(position);
            outcome
                .fetched
                .extend(host_row(position).map(|row| (row, slot)));
        }
        let slot_of = |position: &i32| match newest {
            _ if !is_present(position) => None,
            Some(newest) if newest == i64::from(*position) => Some(slots),
            _ => self
                .held
                .iter()
                .position(|held| *held == Some(*position as u32)),
        };
        outcome.slots = positions.iter().map(slot_of).collect();
        outcome.absent = absent(positions, &outcome.slots);
        outcome
    }

    fn oldest(&mut self, hits: &[usize], wanted: usize) -> Vec<usize> {
        let (hit, untouched): (Vec<usize>, Vec<usize>) = self
            .order
            .iter()
            .copied()
            .partition(|slot| hits.contains(slot));
        let (victims, kept) = untouched.split_at(wanted);
        self.order = [kept, victims, &hit].concat();
        victims.to_vec()
    }

    fn passed_by_the_hand(&mut self, hits: &[usize], wanted: usize) -> Vec<usize> {
        self.time += 1;
        for &slot in hits {
            self.used[slot] = self.time;
        }
        let mut victims = Vec::new();
        while victims.len() < wanted {
            if self.used[self.hand] == 0 {
                victims.push(self.hand);
                self.used[self.hand] = self.time;
            } else if self.used[self.hand] < self.time {
                self.used[self.hand] = 0;
            }
            self.hand = (self.hand + 1) % self.held.len();
        }
        victims
    }
}

fn absent(positions: &[i32], slots: &[Option<usize>]) -> u64 {
    let pairs = positions.iter().zip(slots);
    pairs
        .filter(|(position, slot)| **position != -1 && slot.is_none())
        .count() as u64
}
