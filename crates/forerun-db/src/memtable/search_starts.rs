//! Where the searches of a batch start. A group of them goes through the skip-list index in
//! lock-step, and each then continues by itself from the node that it found there.
//!
//! ```text
//!   targets   t0 t1 … t7 │ t8 t9 … t15 │ t16 t17
//!             in lock-step               one by one
//! ```

use std::marker::PhantomData;

use super::descent::{Descent, entries};
use super::memory_checks::Visit;
use super::node::{Node, Target};
use super::skip_list::SkipList;
use super::skip_list_index::GROUP;

/// Yields the search for each target, together with what came with the target.
pub(super) struct SearchStarts<'a, 'k, V, I, T> {
    list: &'a SkipList,
    targets: I,
    group: [Option<(Target<'k>, T)>; GROUP],
    /// Where each search of the group enters the list.
    entries: [Option<Node<'a>>; GROUP],
    /// How many of the group were passed on.
    passed_on: usize,
    visit: PhantomData<V>,
}

impl<'a, 'k, V: Visit, I: Iterator<Item = (Target<'k>, T)>, T: Copy> SearchStarts<'a, 'k, V, I, T> {
    #[inline(always)]
    pub(super) fn new(list: &'a SkipList, targets: I) -> Self {
        SearchStarts {
            list,
            targets,
            group: [None; GROUP],
            entries: [None; GROUP],
            passed_on: GROUP,
            visit: PhantomData,
        }
    }

    #[inline(always)]
    fn next_group(&mut self) {
        self.group = std::array::from_fn(|_| self.targets.next());
        self.passed_on = 0;
        let targets = self.group.map(|slot| match slot {
            Some((target, _)) => target,
            None => Target::NONE,
        });
        if self.group[GROUP - 1].is_some() {
            self.entries = entries::<V, GROUP>(self.list, &targets);
            return;
        }
        for (i, slot) in self.group.iter().enumerate() {
            if slot.is_some() {
                [self.entries[i]] = entries::<V, 1>(self.list, &[targets[i]]);
            }
        }
    }
}

impl<'a, 'k, V: Visit, I: Iterator<Item = (Target<'k>, T)>, T: Copy> Iterator
    for SearchStarts<'a, 'k, V, I, T>
{
    type Item = (Descent<'a, 'k>, T);

    #[inline(always)]
    fn next(&mut self) -> Option<Self::Item> {
        if self.passed_on == GROUP {
            self.next_group();
        }
        let (target, beside) = self.group[self.passed_on]?;
        let entry = self.entries[self.passed_on];
        self.passed_on += 1;
        // SAFETY: the entry was found for this target.
        Some((unsafe { Descent::enter(self.list, target, entry) }, beside))
    }
}
