"""Chat templates and conversations of text_goldens.json; see make_text_goldens.py."""

CONVERSATIONS = {
    "one": [{"role": "user", "content": "Hi there"}],
    "spaces": [
        {"role": "system", "content": " Be kind. \n"},
        {"role": "user", "content": '\t What\'s "up"? <b>&amp;</b> \n\n'},
        {"role": "assistant", "content": "Not much.\n"},
        {"role": "user", "content": ""},
    ],
    "unicode": [
        {"role": "user", "content": "caf\u00e9 \u2603 \U0001f600 \u4f60\u597d\u2028x"},
        {"role": "assistant", "content": "\u00c9A\u00df"},
        {"role": "user", "content": "\u0130stanbul"},
    ],
    "nulls": [
        {"role": "user", "content": "q", "name": None},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "call_1",
                    "type": "function",
                    "function": {
                        "name": "lookup",
                        "arguments": {
                            "verse": 3,
                            "exact": True,
                            "weights": [0.1, 1e16, 1e-7, -2.0, 1e22, None],
                            "note": 'a \u00e9 </s> "q" \\ \n',
                        },
                    },
                }
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": '{"ok": true}'},
        {"role": "assistant", "content": "done", "tool_calls": None},
    ],
    "parts": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "one"},
                {"type": "image", "url": "x"},
                {"type": "text", "text": "two"},
            ],
        },
        {"role": "assistant", "content": "three"},
    ],
    "order": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}],
    "think": [
        {"role": "user", "content": "2+2?"},
        {"role": "assistant", "content": "<think>\nadd\n</think>\n\n4"},
        {"role": "user", "content": "3+3?"},
        {"role": "assistant", "reasoning": "sum", "content": "6"},
    ],
    "odd": [
        {
            "role": "Weird Role",
            "content": "x",
            "items": [3, 1, 2],
            "keys": {"b": 1, "a": {"z": [], "y": {}}},
            "n": 7,
            "f": 2.5,
        }
    ],
}

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "lookup",
            "description": "Finds a verse \u2014 <quickly>.",
            "parameters": {
                "type": "object",
                "properties": {
                    "verse": {"type": "integer", "description": "Its number"},
                    "tags": {"type": "array", "items": {"type": "string", "enum": ["old", "new"]}},
                },
                "required": ["verse"],
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "count",
            "description": "",
            "parameters": {"type": "object", "properties": {}},
        },
    },
]

ALL = [(name, {}, True) for name in CONVERSATIONS] + [("one", {}, False)]

HEADERS = """{{- bos_token }}
{%- for message in messages %}
    {{- '<<' + message['role'] + '>>\\n\\n' + message['content'] | trim + '<<stop>>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<<assistant>>\\n\\n' }}
{%- endif %}
"""

SYSTEM_FIRST = """{% if messages[0].role == 'system' %}
{% set system = messages[0].content | trim ~ '\\n\\n' %}
{% set rest = messages[1:] %}
{% else %}
{% set system = '' %}
{% set rest = messages %}
{% endif %}
{% for m in rest %}
{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('Roles must alternate: ' ~ m.role ~ ' at ' ~ loop.index0) }}
{% endif %}
{% if loop.first %}{{ system }}{% endif %}
{% if m.role == 'user' %}
[INST] {{ m.content }} [/INST]
{%- elif m.role == 'assistant' %}
 {{ m.content.strip() + eos_token -}}
{% endif %}
{% endfor %}
"""

WITH_TOOLS = """{%- macro describe(tool, level=0) -%}
{{ ' ' * level }}- {{ tool.name }}: {{ tool.description or 'no description' }}
{%- for key, spec in tool.parameters.properties.items() %}

{{ ' ' * (level + 2) }}{{ key }} ({{ spec.type }}{% if key in tool.parameters.required %}, required{% endif %})
{%- if spec['items'] is defined %} of {{ spec['items'].enum | join('|') }}{% endif %}
{%- endfor %}
{%- endmacro -%}
{%- set ns = namespace(tools=0, last=none, open=false) -%}
{%- if tools %}
{%- for tool in tools %}
{{ describe(tool.function, level=2) }}
{{ tool | tojson }}
{{ tool.function.parameters | tojson(indent=2) }}
{%- set ns.tools = ns.tools + 1 %}
{%- endfor %}
{%- endif %}
{%- for message in messages %}
{%- if message.tool_calls is defined and message.tool_calls %}
{%- for call in message.tool_calls %}
{"name": {{ call.function.name | tojson }}, "arguments": {{ call.function.arguments | tojson }}}
{%- endfor %}
{%- elif message.role == 'tool' %}
<result id={{ message.tool_call_id }}>{{ message.content }}</result>
{%- else %}
{{ message.role | upper }}: {{ message.content if message.content is string else message.content | tojson }}
{%- endif %}
{%- set ns.last = message.role %}
{%- endfor %}
tools={{ ns.tools }} last={{ ns.last }} open={{ ns.open }} none={{ none }}{% if tools is none %} no tools{% endif %}
{%- if documents is defined %} documents={{ documents }}{% endif %}
"""

PARTS = """{% for message in messages %}{{ message.role | title }}:{% if message.content is string %} {{ message.content }}
{% elif message.content is iterable and message.content is not mapping %}{% for part in message.content %}{% if part.type == 'text' %} {{ part['text'] }}{% elif part.type != 'image' %}{{ raise_exception('Unknown part ' + part.type) }}{% else %} [image]{% endif %}{% endfor %}

{% else %} (nothing: {{ message.content is defined }})
{% endif %}{% endfor %}"""

THINKING = """{%- set ns = namespace(index=-1, multi=true) %}
{%- for message in messages[::-1] %}
{%- set i = (messages | length - 1) - loop.index0 %}
{%- if ns.multi and message.role == 'user' %}{% set ns.multi = false %}{% set ns.index = i %}{% endif %}
{%- endfor %}
{%- for message in messages %}
{%- set content = message.content | default('', true) %}
{%- set reason = '' %}
{%- if message.reasoning_content is string %}
{%- set reason = message.reasoning_content %}
{%- elif '</think>' in content %}
{%- set reason = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
{%- set content = content.split('</think>')[-1].lstrip('\\n') %}
{%- endif %}
{{ message.role }}{% if loop.index0 > ns.index and reason %} ({{ reason }}){% endif %}: {{ content }}
{%- endfor %}
{{ 'thinking' if thinking is not defined or thinking is true else 'quick' }} index={{ ns.index }}
{%- if enable_thinking is defined and enable_thinking is false %} no thinking{% endif %}
"""

VALUES = """{% set m = messages[0] %}{{ m }}
{{ m['items'] | sort | list }} {{ m['items'] | sort(reverse=true) }} {{ m['items'] | max }} {{ m['items'] | sum }}
{{ m['keys'] | dictsort }} {{ m['keys'] | tojson }} {{ m['keys'] | items | list }} {{ m | length }}
{{ m.n / 2 }} {{ m.n // 2 }} {{ m.n % 4 }} {{ -m.n % 4 }} {{ m.n ** 2 }} {{ m.f * 2 }} {{ m.f | round }} {{ (m.f + 1) | round | int }}
{{ 1e16 }} {{ 1e15 }} {{ 0.1 + 0.2 }} {{ 1e-5 }} {{ 123456789012345678901234567890 }} {{ 5 | float }} {{ '12' | int + 1 }} {{ 'x' | int }}
{{ true and 'yes' or 'no' }} {{ not m.missing }} {{ m.missing is defined }} {{ m.missing | default('d') }} [{{ m.missing }}] {{ none is none }}
{{ [1, 'a', none, true, 2.0, ('t',), {'k': [1]}] }} {{ (1, 2) }} {{ 'it\\'s' }} {{ ["it's", 'a"b', 'tab\\t', 'é\\u2028'] }}
{{ 3 in m['items'] }} {{ 'a' in m['keys'] }} {{ 'ell' in 'hello' }} {{ 4 not in m['items'] }} {{ 1 < 2 < 3 }} {{ 1 == 1.0 }} {{ '1' == 1 }}
{{ 'a' ~ 1 ~ none ~ 2.50 ~ true }} {{ 'ab' * 3 }} {{ [0] * 3 }} {{ [1] + [2] }} {{ '%s is %d%%' % ('x', 5) }} {{ '%05.1f|%x|%-4s|' % (3.14159, 255, 'ab') }}
{{ range(3) | list }} {{ range(5, 0, -2) | list }} {{ dict(a=1, b=[2]) }} {{ '{}-{:>4}-{x}'.format(1, 'r', x=2) }}
{{ m['items'] | map('string') | join('+') }} {{ m['items'] | select('odd') | list }} {{ m['items'] | reject('gt', 1) | list }} {{ m['items'] | batch(2) | list }}
"""

STRINGS = """{% for message in messages %}{% set c = message.content if message.content is string else 'none' %}
[{{ c.strip() }}] [{{ c.upper() }}] [{{ c.lower() }}] [{{ c.title() }}] [{{ c.capitalize() }}] [{{ c | capitalize }}] [{{ c | title }}]
{{ c.split() }} {{ c.split(' ', 1) }} {{ c.splitlines() }} {{ c.replace('a', 'A') }} {{ c.startswith(('H', 'c')) }} {{ c.endswith('\\n') }}
{{ c.find('a') }} {{ c.count('t') }} {{ c[:3] }} {{ c[-2:] }} {{ c[::-1] }} {{ c[1:6:2] }} {{ c[0] if c else '' }} {{ c | length }} {{ c | wordcount }}
{{ c | replace('e', '3', 1) }} {{ c | trim | escape }} {{ c | indent(2, true) }} {{ c | tojson }} {{ c | tojson(ensure_ascii=true) }} {{ c | list | unique | sort | join }}
{{ c.isdigit() }} {{ c.isalpha() }} {{ c.isupper() }} {{ 'x'.join(c.split()) }} {{ c.partition(' ') }} {{ c.rsplit(' ', 1) }} {{ c.lstrip('H\\t ') }} {{ c.removeprefix('Hi') }}
{% endfor %}"""

LOOPS = """{% for message in messages %}{{ loop.index }}/{{ loop.length }} {{ loop.revindex0 }} {{ loop.first }} {{ loop.last }} {{ loop.cycle('odd', 'even') }} {{ loop.previtem.role if loop.previtem else '-' }}>{{ loop.nextitem.role if loop.nextitem is defined else '-' }}{% if not loop.last %},{% endif %}{% endfor %}
{% for m in messages if m.role == 'user' %}{{ loop.index }}{{ m.content }}{% else %}no user{% endfor %}
{% for m in messages %}{% if m.role == 'tool' %}{% continue %}{% endif %}{% if loop.index > 3 %}{% break %}{% endif %}{{ m.role[0] }}{% endfor %}
{% set total = 0 %}{% for m in messages %}{% set total = total + 1 %}{% endfor %}{{ total }}
{% set ns = namespace(total=0, names=[]) %}{% for m in messages %}{% set ns.total = ns.total + 1 %}{% set ns.names = ns.names + [m.role] %}{% endfor %}{{ ns.total }} {{ ns.names | unique | join(',') }}
{% for key, value in messages[0].items() %}{{ key }}={{ value }};{% endfor %}
{% for k in messages[0] %}{{ k }} {% endfor %}{% for c in 'abc' %}{{ c }}.{% endfor %}
{% for group in messages | groupby('role') %}{{ group.grouper }}:{{ group.list | length }} {% endfor %}
{% for m in messages | selectattr('role', 'equalto', 'user') %}u{% endfor %}{{ messages | map(attribute='role') | list }}
{% for row in [[1, [2, 3]], [4, []]] recursive %}{% if row is iterable %}({{ loop(row) }}){% else %}{{ row }}@{{ loop.depth }}{% endif %}{% endfor %}
"""

BLOCKS = """{#- a comment {{ nothing }} -#}
{% raw %}{{ raw }} {% endraw %}
{% set block %}
  captured {{ messages | length }}
{% endset %}[{{ block }}]{% set upper | upper %}loud{% endset %}{{ upper }}
{% filter upper %}filtered {{ 'x' }}{% endfilter %}
{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{{ a is defined }}
{% macro item(text, mark='*') %}{{ mark }} {{ text }}{% if caller %}({{ caller() }}){% endif %}
{% endmacro %}{{ item('one') }}{{ item('two', mark='-') }}{% call item('three') %}inner{% endcall %}
  {%- if true -%}  tight  {%- endif -%}
  {%+ if true %} kept {% endif %}
    {% if false %}never{% endif %}
line
{% generation %}answer{% set inside = 1 %}{% endgeneration %}{{ inside is defined }}
{{- '\\n' }}{{ "a" "b" }} {{ bos_token ~ eos_token }} {{ unk_token is defined }}"""

# In the form of each family's conversations, in words of our own.
GEMMA2 = """{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('No system role') }}{% endif %}
{%- for message in messages %}
{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Users and assistants take turns') }}{% endif %}
{%- set who = 'model' if message['role'] == 'assistant' else message['role'] %}
{{- '<start_of_turn>' + who + '\n' + message['content'] | trim + '<end_of_turn>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"""

GEMMA3 = """{{ bos_token }}
{%- set first = '' -%}
{%- set turns = messages -%}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}
        {%- set first = messages[0]['content'] + '\n\n' -%}
    {%- else -%}
        {%- set first = messages[0]['content'][0]['text'] + '\n\n' -%}
    {%- endif -%}
    {%- set turns = messages[1:] -%}
{%- endif -%}
{%- for message in turns -%}
    {%- set who = {'assistant': 'model'}.get(message['role'], message['role']) -%}
    {{ '<start_of_turn>' ~ who ~ '\n' ~ (first if loop.first else '') }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'image' -%}{{ '<start_of_image>' }}
            {%- elif item['type'] == 'text' -%}{{ item['text'] | trim }}{%- endif -%}
        {%- endfor -%}
    {%- else -%}{{ raise_exception('Neither text nor parts') }}{%- endif -%}
    {{ '<end_of_turn>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<start_of_turn>model\n' }}{%- endif -%}"""

PHI3 = """{% for message in messages %}{% if message['role'] == 'system' and message['content'] %}{{ '<|system|>\n' + message['content'] + '<|end|>\n' }}{% elif message['role'] in ['user', 'assistant'] %}{{ '<|' + message['role'] + '|>\n' + message['content'] + '<|end|>\n' }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}"""

PHI4 = """{% for message in messages %}{% if message['role'] == 'system' and 'tools' in message and message['tools'] is not none %}{{ '<|system|>' + message['content'] + '<|tool|>' + message['tools'] + '<|/tool|><|end|>' }}{% else %}{{ '<|%s|>%s<|end|>' % (message['role'], message['content']) }}{% endif %}{% endfor %}{{ '<|assistant|>' if add_generation_prompt else eos_token }}"""

MIXTRAL = """{%- set head = messages[0].content if messages[0].role == 'system' else none %}
{%- set turns = messages[1:] if head is not none else messages %}
{{- bos_token }}
{%- for message in turns %}
{%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('After ' ~ loop.previtem.role ~ ' comes ' ~ message.role) }}{% endif %}
{%- if message.role == 'user' %}
{%- if loop.first and head is not none %}{{ ' [INST] ' + head + '\n\n' + message.content + ' [/INST]' }}{% else %}{{ ' [INST] ' + message.content + ' [/INST]' }}{% endif %}
{%- else %}{{ ' ' + message.content + eos_token }}{% endif %}
{%- endfor %}"""

QWEN3 = """{%- if tools %}
{{- '<|im_start|>system\n' }}
{%- if messages[0].role == 'system' %}{{- messages[0].content + '\n\n' }}{%- endif %}
{{- '<tools>' }}
{%- for tool in tools %}{{- '\n' }}{{- tool | tojson }}{%- endfor %}
{{- '\n</tools><|im_end|>\n' }}
{%- elif messages[0].role == 'system' %}
{{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
{%- set content = message.content if message.content is string else '' %}
{%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
{{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>\n' }}
{%- elif message.role == 'assistant' %}
{{- '<|im_start|>assistant\n' + content }}
{%- if message.tool_calls %}
{%- for call in message.tool_calls %}
{%- if (loop.first and content) or (not loop.first) %}{{- '\n' }}{%- endif %}
{%- set call = call.function if call.function else call %}
{{- '<tool_call>\n{"name": "' }}{{- call.name }}{{- '", "arguments": ' }}
{%- if call.arguments is string %}{{- call.arguments }}{%- else %}{{- call.arguments | tojson }}{%- endif %}
{{- '}\n</tool_call>' }}
{%- endfor %}
{%- endif %}
{{- '<|im_end|>\n' }}
{%- elif message.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
{{- '\n<tool_response>\n' + content + '\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\n' }}{%- endif %}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\n' }}
{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\n\n</think>\n\n' }}{%- endif %}
{%- endif %}"""

TEMPLATES = [
    (
        "model",
        None,
        [
            (name, {}, prompt)
            for name in ("one", "spaces", "unicode", "order")
            for prompt in (True, False)
        ]
        + [("nulls", {}, True), ("parts", {}, True), ("one", {"bos_token": "<override>"}, True)],
    ),
    (
        "headers",
        HEADERS,
        [(name, {}, prompt) for name in ("one", "spaces", "unicode") for prompt in (True, False)]
        + [("parts", {}, False)],
    ),
    ("system_first", SYSTEM_FIRST, ALL),
    (
        "with_tools",
        WITH_TOOLS,
        ALL
        + [
            ("nulls", {"with_tools": True}, True),
            ("one", {"with_tools": True, "documents": [{"title": "t", "text": "x"}]}, False),
        ],
    ),
    ("parts", PARTS, ALL),
    ("thinking", THINKING, ALL + [("think", {"enable_thinking": False, "thinking": False}, True)]),
    ("gemma2", GEMMA2, ALL),
    ("gemma3", GEMMA3, ALL),
    ("phi3", PHI3, ALL),
    ("phi4", PHI4, ALL),
    ("mixtral", MIXTRAL, ALL),
    (
        "qwen3",
        QWEN3,
        ALL
        + [
            ("nulls", {"with_tools": True}, True),
            ("spaces", {"with_tools": True}, False),
            ("think", {"enable_thinking": False}, True),
        ],
    ),
    ("values", VALUES, [("odd", {}, False)]),
    ("strings", STRINGS, ALL),
    ("loops", LOOPS, ALL),
    ("blocks", BLOCKS, [("one", {}, False)]),
    (
        "kwargs",
        "{{ custom | tojson }} {{ flag is true }} {{ missing }}",
        [("one", {"custom": {"a": [1, {"b": None}]}, "flag": True}, False)],
    ),
    (
        "refuses",
        "{{ raise_exception('Only \"user\" is known, not ' ~ messages[0].role) }}",
        [("one", {}, False)],
    ),
    ("undefined_attribute", "{{ messages[0].missing.deeper }}", [("one", {}, False)]),
    ("wrong_types", "{{ 'a' + 1 }}", [("one", {}, False)]),
    ("none_plus_text", "{{ 'a' + messages[0].name }}", [("nulls", {}, False)]),
    ("mutation", "{% set x = [1] %}{{ x.append(2) }}", [("one", {}, False)]),
    ("internals", "{{ ''.__class__.__mro__ }}", [("one", {}, False)]),
    ("unknown_function", "{{ launch() }}", [("one", {}, False)]),
    ("syntax", "{% if x %}", [("one", {}, False)]),
]
