//! The one error type: a status code with the numbers of absl::StatusCode, and a sentence.

pub const INVALID_ARGUMENT: i32 = 3;
pub const NOT_FOUND: i32 = 5;
pub const OUT_OF_RANGE: i32 = 11;
pub const INTERNAL: i32 = 13;

#[derive(Debug)]
pub struct Failure {
    pub code: i32,
    pub message: String,
}

pub type Outcome<T> = Result<T, Failure>;

impl Failure {
    pub fn new(code: i32, message: impl Into<String>) -> Failure {
        Failure { code, message: message.into() }
    }

    pub fn invalid(message: impl Into<String>) -> Failure {
        Failure::new(INVALID_ARGUMENT, message)
    }
}
