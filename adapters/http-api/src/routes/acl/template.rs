//! Templates of policies.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use starling_model::acl::{TEMPLATES, Template};

use super::not_found;
use crate::answer::Answer;
use crate::answer::forms::acl as forms;
use crate::call::Call;
use crate::error::ApiError;
use crate::parse::acl::fill;
use crate::router::{Api, Outcome};

pub(super) async fn list(_: Arc<Api>, _: Call) -> Outcome {
    let templates = TEMPLATES.into_iter().map(|template| (template.name.to_owned(), forms::template(template)));
    Ok(Answer::json(Value::Object(templates.collect::<Map<_, _>>())))
}

fn named(call: &Call) -> Result<Template, ApiError> {
    let name = call.param("name");
    Template::named(name).ok_or_else(|| not_found("templated policy", name))
}

pub(super) async fn read(_: Arc<Api>, call: Call) -> Outcome {
    Ok(Answer::json(forms::template(named(&call)?)))
}

pub(super) async fn preview(api: Arc<Api>, call: Call) -> Outcome {
    let template = named(&call)?;
    let name = if call.body.is_empty() || *call.body == *b"null" {
        None
    } else {
        let context = Call::context(&api.catalog.authority());
        let mut fields = call.fields(&context)?;
        let name = fields.text("Name")?;
        fields.finish()?;
        name
    };
    let name = fill(template, name, "Name")?.unwrap_or_default();
    Ok(Answer::json(json!({
        "ID": "",
        "Name": format!("synthetic-policy-{}", template.name.replace('/', "-")),
        "Description": template.description,
        "Rules": template.text(&name),
        "Datacenters": null,
    })))
}
