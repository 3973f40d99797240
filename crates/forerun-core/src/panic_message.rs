//! The message of a caught panic.

use std::any::Any;

/// The message of a panic that [`catch_unwind`](std::panic::catch_unwind) caught.
///
/// ```
/// let caught = std::panic::catch_unwind(|| panic!("key {} is bad", 7));
/// assert_eq!(forerun_core::panic_message(&*caught.unwrap_err()), "key 7 is bad");
/// ```
pub fn panic_message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("it carries no message").to_owned()
}
