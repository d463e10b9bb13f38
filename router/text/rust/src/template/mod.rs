//! Chat templates, rendered as transformers' apply_chat_template does. The sources are not trusted:
//! see `limits`.

mod call;
mod filters;
mod formats;
mod globals;
mod json;
mod limits;
mod methods;
mod operators;
mod python;
mod render;
mod rewrite;
mod sequences;
mod text;
mod values;

use std::collections::BTreeMap;

use serde_json::Value as Json;

use crate::failure::{Failure, Outcome};
use crate::model_files::{kind, TemplateSource, TextConfig, MAX_TEMPLATE_BYTES};
use values::Entries;

pub struct Request<'a> {
    pub messages_json: &'a str,
    /// A JSON object of template variables; empty = none.
    pub kwargs_json: &'a str,
    /// A template, or the name of one; empty = the model's.
    pub chat_template: &'a str,
    pub add_generation_prompt: bool,
    /// Seconds since 1970; None = now.
    pub now_s: Option<i64>,
}

pub struct Templates {
    sources: BTreeMap<String, TemplateSource>,
    special_tokens: Vec<(String, String)>,
    environment: minijinja::Environment<'static>,
}

/// Parameters of apply_chat_template that are no template variables.
const RESERVED: [&str; 7] = [
    "messages",
    "conversation",
    "chat_template",
    "tokenize",
    "continue_final_message",
    "return_assistant_tokens_mask",
    "sanitize_control_tokens",
];

/// Names under which a message's reasoning is passed; templates read the first.
const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

impl Templates {
    pub fn new(config: &TextConfig) -> Outcome<Templates> {
        let special_tokens = config
            .named_tokens
            .iter()
            .map(|(name, token)| (name.clone(), token.content().to_string()))
            .collect();
        let sources = config.templates.clone();
        for name in ["default", "tool_use"] {
            if let Some(template) = sources.get(name) {
                render::validate(&template.source).map_err(|error| {
                    Failure::invalid(format!("{}: chat template: {}", template.file, error.message))
                })?;
            }
        }
        Ok(Templates { sources, special_tokens, environment: render::environment() })
    }

    pub fn has_default(&self) -> bool {
        self.sources.contains_key("default")
    }

    pub fn render(&self, request: &Request) -> Outcome<String> {
        let messages = parse_messages(request.messages_json)?;
        let mut variables = serde_json::Map::new();
        for (name, text) in &self.special_tokens {
            variables.insert(name.clone(), Json::String(text.clone()));
        }
        variables.insert("tools".into(), Json::Null);
        variables.insert("documents".into(), Json::Null);
        variables.insert("add_generation_prompt".into(), request.add_generation_prompt.into());
        variables.extend(parse_kwargs(request.kwargs_json)?);
        let source = self.choose(request.chat_template, !variables["tools"].is_null())?;
        variables.insert("messages".into(), messages);
        render::render(&self.environment, &source, variables, request.now_s)
    }

    /// As transformers: a name, a template itself, or the model's default.
    fn choose(&self, wanted: &str, has_tools: bool) -> Outcome<TemplateSource> {
        if let Some(template) = self.sources.get(wanted) {
            return Ok(template.clone());
        }
        if !wanted.is_empty() {
            if wanted.len() as u64 > MAX_TEMPLATE_BYTES {
                return Err(Failure::invalid(format!(
                    "chat_template is larger than {MAX_TEMPLATE_BYTES} bytes"
                )));
            }
            let file = "chat_template".to_string();
            return Ok(TemplateSource { file, source: wanted.to_string() });
        }
        let tools = self.sources.get("tool_use").filter(|_| has_tools);
        if let Some(template) = tools.or_else(|| self.sources.get("default")) {
            return Ok(template.clone());
        }
        let names: Vec<&str> = self.sources.keys().map(String::as_str).collect();
        Err(Failure::invalid(if names.is_empty() {
            "this model has no chat template; send a text prompt, or add chat_template.jinja to \
             the model folder"
                .to_string()
        } else {
            format!("this model has no default chat template; name one of: {}", names.join(", "))
        }))
    }
}

fn parse_kwargs(json: &str) -> Outcome<serde_json::Map<String, Json>> {
    const FIELD: &str = "chat_template_kwargs";
    if json.is_empty() {
        return Ok(serde_json::Map::new());
    }
    let kwargs = match serde_json::from_str(json) {
        Ok(Json::Object(kwargs)) => kwargs,
        Ok(other) => {
            let found = kind(&other);
            return Err(Failure::invalid(format!("{FIELD}: must be an object, not {found}")));
        }
        Err(error) => return Err(Failure::invalid(format!("{FIELD}: not valid JSON: {error}"))),
    };
    for name in RESERVED {
        let neutral = |value: &Json| value.is_null() || *value == Json::Bool(false);
        if kwargs.get(name).is_some_and(|value| !neutral(value)) {
            return Err(Failure::invalid(format!("{FIELD}.{name} is not supported: remove it")));
        }
    }
    Ok(kwargs.into_iter().filter(|(name, _)| !RESERVED.contains(&name.as_str())).collect())
}

/// Null members count as absent, and reasoning is found under each of its names.
fn parse_messages(json: &str) -> Outcome<Json> {
    let mut messages = match serde_json::from_str(json) {
        Ok(Json::Array(messages)) => messages,
        Ok(other) => {
            let found = kind(&other);
            return Err(Failure::invalid(format!("messages: must be an array, not {found}")));
        }
        Err(error) => return Err(Failure::invalid(format!("messages: not valid JSON: {error}"))),
    };
    if messages.is_empty() {
        return Err(Failure::invalid("messages: must hold at least one message"));
    }
    for (i, message) in messages.iter_mut().enumerate() {
        let Json::Object(members) = message else {
            let found = kind(message);
            return Err(Failure::invalid(format!("messages[{i}]: must be an object, not {found}")));
        };
        members.retain(|_, value| !value.is_null());
        let reasoning = REASONING.iter().find_map(|name| members.get(*name)).cloned();
        if let Some(reasoning) = reasoning {
            let mut aliased = serde_json::Map::new();
            aliased.insert("thinking".into(), reasoning.clone());
            aliased.extend(std::mem::take(members));
            aliased.insert("reasoning_content".into(), reasoning);
            *members = aliased;
        }
    }
    Ok(Json::Array(messages))
}

/// The variables of a rendering, in the containers that templates work on.
fn to_entries(variables: &serde_json::Map<String, Json>) -> Result<Entries, minijinja::Error> {
    let mut entries = Entries::new();
    for (name, value) in variables {
        entries.insert(minijinja::Value::from(name.as_str()), values::from_json(value)?);
    }
    Ok(entries)
}
