"""Chat templates in the manner of the families, with their variables."""

# ruff: noqa: E501

MACRO = """
{%- macro written(content) %}
    {%- if content is string %}{{- content }}
    {%- elif content is iterable and content is not mapping %}
        {%- for item in content %}
            {%- if 'image' in item or item.type == 'image' %}{{- '<img>' }}
            {%- elif 'text' in item %}{{- item.text }}
            {%- else %}{{- raise_exception('unexpected item in content') }}{%- endif %}
        {%- endfor %}
    {%- elif content is none or content is undefined %}{{- '' }}
    {%- else %}{{- raise_exception('unexpected content') }}{%- endif %}
{%- endmacro %}
"""
# Tool calls as XML parameters, thoughts of the turns after the last question.
XML_CALLS = (
    MACRO
    + """
{%- if tools and tools is iterable %}
    {{- '<|im_start|>system\\n# Tools\\n\\n<tools>' }}
    {%- for tool in tools %}{{- '\\n' }}{{- tool | tojson }}{%- endfor %}
    {{- '\\n</tools><|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(last=-1) %}
{%- for message in messages %}
    {%- if message.role == 'user' %}{%- set ns.last = loop.index0 %}{%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = written(message.content) | trim %}
    {%- if message.role == 'system' %}
        {%- if not loop.first %}{{- raise_exception('System message must be first.') }}{%- endif %}
        {{- '<|im_start|>system\\n' + content + '<|im_end|>\\n' }}
    {%- elif message.role == 'user' %}
        {{- '<|im_start|>user\\n' + content + '<|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {%- set thoughts = '' %}
        {%- if message.reasoning_content is string %}
            {%- set thoughts = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set thoughts = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- set thoughts = thoughts | trim %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if (preserve_thinking is defined and preserve_thinking is true) or loop.index0 > ns.last %}
            {{- '<think>\\n' + thoughts + '\\n</think>\\n\\n' }}
        {%- endif %}
        {{- content }}
        {%- for call in message.tool_calls or [] %}
            {%- if call.function is defined %}{%- set call = call.function %}{%- endif %}
            {{- '\\n<tool_call>\\n<function=' + call.name + '>\\n' }}
            {%- if call.arguments is defined %}
                {%- for name, value in call.arguments|items %}
                    {{- '<parameter=' + name + '>\\n' }}
                    {{- value if value is string else value | tojson }}
                    {{- '\\n</parameter>\\n' }}
                {%- endfor %}
            {%- endif %}
            {{- '</function>\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.previtem and loop.previtem.role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + content + '\\n</tool_response>' }}
        {%- if loop.last or loop.nextitem.role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- else %}
        {{- raise_exception('Unexpected message role.') }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}
    {%- else %}{{- '<think>\\n' }}{%- endif %}
{%- endif %}
"""
)
# JSON calls; only objects are written unchanged; texts are left out.
MAPPING_CALLS = XML_CALLS.replace("if call.arguments is defined", "if call.arguments is mapping")
# A first token, tools in the system message, thoughts under the name `thinking`.
KEPT_THOUGHTS = """
{{- bos_token -}}
{%- set keep = preserve_thinking | default(false) -%}
{%- set ns = namespace(system="", last=-1) -%}
{%- if messages[0].role == "system" -%}
    {%- set ns.system = messages[0].content if messages[0].content is string else messages[0].content | tojson -%}
    {%- set messages = messages[1:] -%}
{%- endif -%}
{%- if tools -%}
    {%- set ns.system = ns.system + "List of tools: [" -%}
    {%- for tool in tools -%}
        {%- set ns.system = ns.system + (tool if tool is string else tool | tojson) + (", " if not loop.last else "") -%}
    {%- endfor -%}
    {%- set ns.system = ns.system + "]" -%}
{%- endif -%}
{%- if ns.system -%}{{- "<|im_start|>system\\n" + ns.system + "<|im_end|>\\n" -}}{%- endif -%}
{%- for message in messages -%}
    {%- if message.role == "assistant" -%}{%- set ns.last = loop.index0 -%}{%- endif -%}
{%- endfor -%}
{%- for message in messages -%}
    {{- "<|im_start|>" + message.role + "\\n" -}}
    {%- set content = message.content -%}
    {%- if content is not string and content is iterable -%}
        {%- set parts = namespace(text="") -%}
        {%- for item in content -%}{%- set parts.text = parts.text + item["text"] -%}{%- endfor -%}
        {%- set content = parts.text -%}
    {%- endif -%}
    {%- if message.role == "assistant" and message.thinking is defined and (keep or loop.index0 == ns.last) -%}
        {{- "<think>" + message.thinking + "</think>" -}}
    {%- endif -%}
    {%- if message.tool_calls is defined -%}
        {{- "<|tool_call_start|>[" -}}
        {%- for call in message.tool_calls -%}
            {%- set function = call.function | default(call) -%}
            {{- function.name + "(" -}}
            {%- for name, value in function.arguments.items() -%}{{- name + "=" + value | tojson -}}{%- endfor -%}
            {{- ")" -}}
        {%- endfor -%}
        {{- "]<|tool_call_end|>" -}}
    {%- endif -%}
    {{- content + "<|im_end|>\\n" -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- "<|im_start|>assistant\\n" -}}{%- endif -%}
"""
# Documents, roles in markers, arguments as texts or objects.
DOCUMENTS = """
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content'] %}{%- set rest = messages[1:] %}
{%- else %}
    {%- set system = "Today is some day." %}{%- set rest = messages %}
{%- endif %}
{{- '<|start|>system<|end|>' }}
{%- if system is string %}{{ system }}{% else %}{% for part in system %}{{ part.text }}{% endfor %}{% endif %}
{{- '<|im_end|>\\n' }}
{%- if tools %}{{ '<|start|>tools<|end|>' }}{{ tools | tojson(indent=4) }}{{ '\\n' }}{%- endif %}
{%- if documents %}
    {%- for document in documents %}
        {{- '<|start|>document' + loop.index|string + '<|end|>' + document['title'] + '\\n' + document['text'] + '\\n' }}
    {%- endfor %}
{%- endif %}
{%- for message in rest %}
    {%- generation %}
    {{- '<|start|>' + message['role'] + '<|end|>' }}
    {%- if message.content is string %}{{ message.content }}
    {%- elif message.content %}{% for part in message.content %}{{ part['text'] }}{% endfor %}{%- endif %}
    {%- for call in message.tool_calls or [] %}
        {%- set arguments = (call.function or call).arguments %}
        {{- '<tool_call>' }}{{ arguments if arguments is string else arguments | tojson(ensure_ascii=True) }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
    {%- endgeneration %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start|>assistant' + (' thinking' if thinking is defined and thinking else '') + '<|end|>' }}
{%- endif %}
"""
# Thoughts of the last turn only, ids of calls, turns that have to alternate.
NUMBERED_CALLS = (
    MACRO
    + """
{%- set allowed = namespace(count=0) %}
{%- for message in messages %}
    {%- if message['role'] == 'assistant' %}<|im_assistant|>{% else %}<|im_{{ message['role'] }}|>{% endif %}
    {{- message.get('name') or message['role'] }}<|im_middle|>
    {%- if message.role == 'tool' %}## Return of {{ message.tool_call_id }}
{{ written(message.content) }}
    {%- elif message.tool_calls is defined and message.tool_calls %}{{ written(message.content) }}
        {%- for call in message['tool_calls'] %}
            {%- set function = call['function'] if 'function' in call else call %}
            {%- set allowed.count = allowed.count + 1 %}
            {{- '<|call|>' ~ call.get('id', allowed.count) ~ '<|arg|>' }}
            {%- if function['arguments'] is string %}{{ function['arguments'] }}
            {%- else %}{{ function['arguments'] | tojson }}{% endif %}
        {%- endfor %}
    {%- else %}{{ written(message.content) }}{%- endif %}<|im_end|>
{%- endfor %}
{%- if add_generation_prompt %}<|im_assistant|>assistant<|im_middle|>{% endif %}
"""
)
# Thoughts stay or go by a switch in the system message; contents are texts only.
SWITCHED = """
{%- set ns = namespace(think=true) %}
{%- for message in messages %}
    {%- if message.role in ['user', 'system'] and message.content is string %}
        {%- if '/no_think' in message.content %}{%- set ns.think = false %}{%- endif %}
    {%- endif %}
{%- endfor %}
{{- '<SPECIAL_10>System\\n' }}
{%- if messages[0].role == 'system' %}{{- messages[0].content.strip() }}{%- endif %}
{%- if tools %}
    {{- '\\n<AVAILABLE_TOOLS>[' }}{%- for tool in tools %}{{- tool.function | tojson }}{%- endfor %}{{- ']' }}
{%- endif %}
{{- '\\n' }}
{%- for message in messages %}
    {%- if message.role == 'user' %}{{- '<SPECIAL_11>User\\n' + message.content.replace('/no_think', '').strip() + '\\n' }}
    {%- elif message.role == 'tool' %}{{- '<TOOL_RESPONSE>[' + message.content + ']\\n' }}
    {%- elif message.role == 'assistant' %}
        {%- set content = message.content | default('') %}
        {%- if '</think>' in content %}{%- set content = content.split('</think>')[1].strip() %}{%- endif %}
        {{- '<SPECIAL_11>Assistant\\n' + content.strip() }}
        {%- if message.tool_calls %}
            {{- '<TOOLCALL>[' }}
            {%- for call in message.tool_calls %}
                {%- set function = call.function or call %}
                {{- '{"name": "' + function.name + '", "arguments": ' }}
                {%- if function.arguments is string %}{{- function.arguments }}
                {%- else %}{{- function.arguments | tojson }}{%- endif %}
                {{- '}' }}
            {%- endfor %}
            {{- ']</TOOLCALL>' }}
        {%- endif %}
        {{- '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<SPECIAL_11>Assistant\\n' + ('<think>\\n' if ns.think and enable_thinking | default(true) else '<think></think>') }}
{%- endif %}
"""
PLAIN = """{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}{{ message['content'] }}{{ eos_token }}
{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""
INST = """{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}[INST] {{ message['content'] | trim }} [/INST]
{%- elif message['role'] == 'assistant' %} {{ message['content'] | trim }}{{ eos_token }}
{%- elif message['role'] == 'system' %}{{ '<<SYS>>' ~ message['content'] }}
{%- else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}"""
JSON_CALLS = XML_CALLS.replace(
    """                {%- for name, value in call.arguments|items %}
                    {{- '<parameter=' + name + '>\\n' }}
                    {{- value if value is string else value | tojson }}
                    {{- '\\n</parameter>\\n' }}
                {%- endfor %}
""",
    "                {{- call.arguments | tojson }}\n",
)

TEMPLATES = {
    "qwen3_5": XML_CALLS, "qwen3_next": JSON_CALLS, "mapping": MAPPING_CALLS, "lfm2": KEPT_THOUGHTS,
    "granite": DOCUMENTS, "kimi_linear": NUMBERED_CALLS, "nemotron_h": SWITCHED, "plain": PLAIN, "mamba2": INST,
}  # fmt: skip
"""Family -> template."""
