//! What tests ask of the fake driver (`tests/driver/fake_driver.cpp`), once it is loaded.

#![allow(dead_code, reason = "not every test binary uses all of them")]

use cudarc::driver::sys;
use std::ffi::{CStr, CString, c_char};

/// Calls a function of the fake driver that returns a text.
fn text_of(function: &[u8]) -> String {
    type Text = extern "C" fn() -> *const c_char;
    // SAFETY: the fake driver is loaded, has this function, and returns a string that ends with a
    // zero and stays until the next call.
    let text = unsafe {
        let call = sys::culib().get::<Text>(function).unwrap();
        CStr::from_ptr(call())
    };
    text.to_str().unwrap().trim_end().to_owned()
}

/// Calls a function of the fake driver that returns a number.
fn number_of(function: &[u8]) -> i32 {
    type Number = extern "C" fn() -> i32;
    // SAFETY: the fake driver is loaded and has this function.
    unsafe {
        let call = sys::culib().get::<Number>(function).unwrap();
        call()
    }
}

/// Sets a switch of the fake driver.
fn switch(function: &[u8], on: bool) {
    type Switch = extern "C" fn(i32);
    // SAFETY: as above.
    unsafe {
        let call = sys::culib().get::<Switch>(function).unwrap();
        call(on.into());
    }
}

/// The copies, fills, launches, records and waits since the last question, in order, each with the
/// number of its stream; 0 is the default stream.
pub fn calls_on_streams() -> Vec<(String, u32)> {
    let text = text_of(b"fakeCalls");
    let calls = text.split_whitespace().map(|call| {
        let (word, stream) = call.split_once(':').unwrap();
        (word.to_owned(), stream.parse().unwrap())
    });
    calls.collect()
}

/// The same without streams.
pub fn calls() -> String {
    let words: Vec<String> = calls_on_streams()
        .into_iter()
        .map(|(word, _)| word)
        .collect();
    words.join(" ")
}

/// What the program did wrong since the last question.
pub fn faults() -> String {
    text_of(b"fakeFaults")
}

/// Makes a call of a function fail, after this many calls that do not.
pub fn fail(function: &str, after: i32) {
    type Fail = extern "C" fn(*const c_char, i32);
    let name = CString::new(function).unwrap();
    // SAFETY: as above; it copies the name.
    unsafe {
        let call = sys::culib().get::<Fail>(b"fakeFail").unwrap();
        call(name.as_ptr(), after);
    }
}

/// Makes launches wait, or lets them go on.
pub fn hold_launches(held: bool) {
    switch(b"fakeHold", held);
}

/// Launches that wait now.
pub fn waiting_launches() -> i32 {
    number_of(b"fakeWaiting")
}

/// Begins or ends a capture of a graph by another thread, in the mode that forbids unsafe calls on
/// all threads.
pub fn another_thread_captures(captures: bool) {
    switch(b"fakeCapture", captures);
}

/// Ranges of host memory that are registered now.
pub fn registered() -> i32 {
    number_of(b"fakeRegistered")
}

/// Images of kernels that are loaded now.
pub fn modules() -> i32 {
    number_of(b"fakeModules")
}

/// The context that is current on this thread, null for none.
pub fn current() -> sys::CUcontext {
    let mut context = std::ptr::null_mut();
    // SAFETY: the fake driver is loaded and writes one handle.
    let result = unsafe { sys::cuCtxGetCurrent(&mut context) };
    assert_eq!(result, sys::CUresult::CUDA_SUCCESS);
    context
}

/// Makes the context of a device current on this thread, as another library would.
pub fn enter(device: i32) -> sys::CUcontext {
    let mut context = std::ptr::null_mut();
    // SAFETY: the fake driver is loaded; it writes one handle, which stays valid.
    unsafe {
        sys::cuDevicePrimaryCtxRetain(&mut context, device);
        sys::cuCtxSetCurrent(context);
    }
    assert_eq!(current(), context);
    context
}
