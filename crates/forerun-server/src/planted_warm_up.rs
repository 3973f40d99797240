//! Known defects of warm-ups, which `tests/planted_warm_up.rs` finds. The simulator has one thread
//! and no warm-ups, so it looks only for those in `planted.rs`.

forerun_core::planted_defects! {
    FillUnchecked "fill-unchecked"
        "A warm-up copies the values of keys that clients have changed since it began.",
    TouchUnmarked "touch-unmarked"
        "A touch that finds nothing does not mark its key, so a copy of the key comes after it.",
    FillUnlocked "fill-unlocked"
        "Between the check of a copied key and the store of its copy, a client can change the key.",
}
