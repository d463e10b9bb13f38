//! Runs one template on a thread of its own (see `limits`), or with `inline-templates` on the
//! caller's.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::thread;

use minijinja::machinery::{self, CodeGenerator};
use minijinja::syntax::SyntaxConfig;
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Output, State, Value};
use serde_json::{Map, Value as Json};

use super::values::Dict;
use super::{filters, globals, limits, methods, operators, python, rewrite};
use crate::failure::{Failure, Outcome, INTERNAL};
use crate::model_files::TemplateSource;

/// Parses a template without running it.
pub fn validate(source: &str) -> Outcome<()> {
    on_own_thread(None, || {
        let source = replace_generation_tags(source);
        parse(&source).map(drop).map_err(|error| Failure::invalid(describe(&error)))
    })
}

pub fn render(
    env: &Environment<'static>,
    template: &TemplateSource,
    variables: Map<String, Json>,
    now_s: Option<i64>,
) -> Outcome<String> {
    on_own_thread(now_s, move || {
        let result = run(env, &template.source, variables);
        let refusal = limits::take_refusal();
        result.map_err(|error| {
            let reason = refusal.unwrap_or_else(|| describe(&error));
            Failure::invalid(format!("chat template: {reason}"))
        })
    })
}

fn on_own_thread<T: Send>(
    now_s: Option<i64>,
    work: impl FnOnce() -> Outcome<T> + Send,
) -> Outcome<T> {
    let guarded = || {
        limits::begin(now_s);
        catch_unwind(AssertUnwindSafe(work))
            .unwrap_or_else(|_| Err(internal("it met a case that is not handled")))
    };
    if cfg!(feature = "inline-templates") {
        return guarded();
    }
    thread::scope(|scope| {
        let spawned = thread::Builder::new()
            .name("chat-template".into())
            .stack_size(limits::STACK_BYTES)
            .spawn_scoped(scope, guarded);
        match spawned {
            Ok(handle) => handle.join().unwrap_or_else(|_| Err(internal("it failed"))),
            Err(_) => Err(internal("no thread can be started for it")),
        }
    })
}

fn internal(message: &str) -> Failure {
    Failure::new(INTERNAL, format!("chat template: {message}"))
}

fn syntax() -> SyntaxConfig {
    let builder = &mut SyntaxConfig::builder();
    builder.trim_blocks(true).lstrip_blocks(true).build().unwrap_or_default()
}

fn parse(source: &str) -> Result<machinery::ast::Stmt<'_>, Error> {
    let parsed = machinery::parse(source, "template", syntax())?;
    rewrite::rewrite(&parsed)
}

fn run(
    env: &Environment<'static>,
    source: &str,
    variables: Map<String, Json>,
) -> Result<String, Error> {
    let source = replace_generation_tags(source);
    let mut generator = CodeGenerator::new("template", &source);
    generator.compile_stmt(&parse(&source)?);
    let (instructions, blocks) = generator.finish();
    let root = Dict::build(super::to_entries(&variables)?)?;
    drop(variables);
    let mut text = String::new();
    let mut out = machinery::make_string_output(&mut text);
    machinery::eval(env, &instructions, root, &blocks, &mut out, AutoEscape::None)?;
    Ok(text)
}

/// What every template of this library runs in.
pub fn environment() -> Environment<'static> {
    let mut env = Environment::new();
    env.set_debug(false);
    env.set_fuel(Some(limits::MAX_INSTRUCTIONS));
    env.set_auto_escape_callback(|_| AutoEscape::None);
    env.set_formatter(write_value);
    env.set_unknown_method_callback(methods::call_text);
    operators::register(&mut env);
    filters::register(&mut env);
    globals::register(&mut env);
    env
}

/// `{{ value }}`
fn write_value(out: &mut Output, _state: &mut State, value: &Value) -> Result<(), Error> {
    if let Some(text) = value.as_str() {
        limits::count_output(text.len())?;
        return out.write_str(text).map_err(Error::from);
    }
    let mut text = limits::Text::default();
    python::write_str(value, &mut text)?;
    let text = text.finish();
    limits::count_output(text.len())?;
    out.write_str(&text).map_err(Error::from)
}

/// An error in one line: what, and in which line of the template.
fn describe(error: &Error) -> String {
    let what = match error.detail() {
        None if error.kind() == ErrorKind::OutOfFuel => {
            "the template exceeds a limit: it runs too many instructions".to_string()
        }
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    };
    match error.line() {
        Some(line) => format!("{what} (line {line})"),
        None => what,
    }
}

/// `{% generation %}` marks the model's own words for training. It only opens a scope.
fn replace_generation_tags(source: &str) -> String {
    let mut result = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let inside = &rest[at + 2..];
        let Some(end) = inside.find("%}") else {
            break;
        };
        let word = inside[..end].trim_matches(['-', '+']).trim();
        let replacement = match word {
            "generation" => "with",
            "endgeneration" => "endwith",
            _ => {
                result.push_str(&rest[..at + 2]);
                rest = inside;
                continue;
            }
        };
        result.push_str(&rest[..at + 2]);
        result.push_str(&inside[..end].replace(word, replacement));
        result.push_str("%}");
        rest = &inside[end + 2..];
    }
    result.push_str(rest);
    result
}
