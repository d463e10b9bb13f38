//! Chat templates, rendered as transformers' apply_chat_template does.

use std::collections::BTreeMap;

use minijinja::syntax::SyntaxConfig;
use minijinja::{AutoEscape, Environment, Error, ErrorKind};
use serde_json::{Map, Value};

use crate::failure::{Failure, Outcome};
use crate::model_files::{TemplateSource, TextConfig};

pub struct Request<'a> {
    pub messages_json: &'a str,
    /// A JSON object of template variables; empty = none.
    pub kwargs_json: &'a str,
    /// A template, or the name of one; empty = the model's.
    pub chat_template: &'a str,
    pub add_generation_prompt: bool,
    pub now_s: Option<i64>,
}

pub struct Templates {
    sources: BTreeMap<String, TemplateSource>,
    special_tokens: Vec<(String, String)>,
}

fn environment<'a>() -> Environment<'a> {
    let mut env = Environment::new();
    env.set_syntax(
        SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build().unwrap_or_default(),
    );
    env.set_auto_escape_callback(|_| AutoEscape::None);
    env.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    env.set_fuel(Some(1_000_000));
    env.add_function("raise_exception", |message: String| -> Result<String, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, message))
    });
    env
}

impl Templates {
    pub fn new(config: &TextConfig) -> Outcome<Templates> {
        let special_tokens = config
            .named_tokens
            .iter()
            .map(|(name, token)| (name.clone(), token.content().to_string()))
            .collect();
        let sources = config.templates.clone();
        for (_, template) in sources.iter().filter(|(name, _)| is_used(name)) {
            environment().template_from_str(&template.source).map_err(|error| {
                Failure::invalid(format!("{}: chat template: {error}", template.file))
            })?;
        }
        Ok(Templates { sources, special_tokens })
    }

    pub fn has_default(&self) -> bool {
        self.sources.contains_key("default")
    }

    pub fn render(&self, request: &Request) -> Outcome<String> {
        let messages = parse_messages(request.messages_json)?;
        let mut variables = Map::new();
        for (name, text) in &self.special_tokens {
            variables.insert(name.clone(), Value::String(text.clone()));
        }
        variables.insert("messages".into(), messages);
        variables.insert("tools".into(), Value::Null);
        variables.insert("documents".into(), Value::Null);
        variables.insert("add_generation_prompt".into(), request.add_generation_prompt.into());
        if !request.kwargs_json.is_empty() {
            if let Ok(Value::Object(kwargs)) = serde_json::from_str(request.kwargs_json) {
                variables.extend(kwargs);
            }
        }
        let source = match self.sources.get("default") {
            Some(template) if request.chat_template.is_empty() => template.source.as_str(),
            _ => request.chat_template,
        };
        let env = environment();
        env.render_str(source, minijinja::Value::from(minijinja::value::Serde(&variables)))
            .map_err(|error| Failure::invalid(format!("chat template: {error}")))
    }
}

fn is_used(name: &str) -> bool {
    name == "default" || name == "tool_use"
}

fn parse_messages(json: &str) -> Outcome<Value> {
    serde_json::from_str(json)
        .map_err(|error| Failure::invalid(format!("messages: not valid JSON: {error}")))
}
